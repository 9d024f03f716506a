"""Real faults in real runs."""
