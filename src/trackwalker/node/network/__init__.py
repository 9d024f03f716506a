"""What networks a node has, and the one network that a job uses."""
