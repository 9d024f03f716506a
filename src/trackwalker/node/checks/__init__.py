"""Preflight checks of a node, and the comparison of all nodes' results (docs/how-to/preflight.md)."""
