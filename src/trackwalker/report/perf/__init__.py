"""Views of a performance report."""
