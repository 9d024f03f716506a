"""What differs from its own past and from its peers."""
