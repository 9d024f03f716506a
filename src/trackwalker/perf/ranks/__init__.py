"""Ranks against each other: one clock, the same collectives side by side, who comes late."""
