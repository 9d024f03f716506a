"""Cause files, their tests, and which of the causes found is the diagnosis."""
