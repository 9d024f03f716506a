"""Commands that start, end and repeat runs."""
