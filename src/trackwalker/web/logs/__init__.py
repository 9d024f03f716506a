"""The log viewer: which lines a page shows, found in logs of any size."""
