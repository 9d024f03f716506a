"""Metric stores of others: their names, what they have, read politely."""
