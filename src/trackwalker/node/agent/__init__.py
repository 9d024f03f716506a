"""The node agent itself: its ranks, its peers, how they end, and who takes over when it dies."""
