"""Which lines are failures, of what class, whose, and which of them is the cause."""
