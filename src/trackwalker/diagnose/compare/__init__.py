"""Two jobs against each other."""
