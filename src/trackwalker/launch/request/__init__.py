"""What was asked, resolved and checked before anything is created."""
