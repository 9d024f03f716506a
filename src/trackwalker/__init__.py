"""Trackwalker: launch, record and diagnose LLM training runs."""

__version__ = "0.2.0"
