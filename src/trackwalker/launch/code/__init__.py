"""The code of a run: where it came from, frozen, shipped, cleaned up."""
