"""The flag sweep."""
