"""What single held-out sets need beyond the common faults."""
