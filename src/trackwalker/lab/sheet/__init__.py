"""What the exporters of all hosts report during a run: quiet weather first, faults laid over it."""
