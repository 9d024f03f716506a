"""Log reading: what a job wrote, as facts with line numbers."""
