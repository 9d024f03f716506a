"""What pages show, as bounded data."""
