"""The batch sweep."""
