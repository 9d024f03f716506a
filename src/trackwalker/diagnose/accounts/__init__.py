"""Where lost time went."""
