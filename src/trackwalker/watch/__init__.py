"""Following a run while it runs."""
