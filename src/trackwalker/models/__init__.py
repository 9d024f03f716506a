"""Model files that come with Trackwalker."""
