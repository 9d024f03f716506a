"""A run, read once: its log, its steps, its clock, how it stands. Everything that reads a job takes it from here."""
