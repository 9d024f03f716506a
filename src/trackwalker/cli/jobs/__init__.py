"""Commands that list and show jobs."""
