"""Trace files of every kind, read into one model, and written again."""
