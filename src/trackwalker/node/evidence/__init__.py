"""What is kept of ranks in trouble: capsules, stacks, core dumps."""
