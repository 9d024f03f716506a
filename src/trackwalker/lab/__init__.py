"""Incidents on demand: real faults in real runs."""
