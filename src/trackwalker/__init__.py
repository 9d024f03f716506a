"""Trackwalker: launch, record and diagnose LLM training runs."""

__version__ = "0.1.0"
