"""The model sweep."""
