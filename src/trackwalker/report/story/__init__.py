"""What a report file shows beside the verdict."""
