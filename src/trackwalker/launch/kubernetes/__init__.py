"""Kubernetes as the scheduler: manifests from typed plans, and kubectl to apply and read them."""
