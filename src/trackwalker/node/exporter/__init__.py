"""Collectors on a schedule, plug-ins, and the page on which Prometheus finds what they found."""
