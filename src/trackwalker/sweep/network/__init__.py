"""The network sweep."""
