"""The node sweep."""
