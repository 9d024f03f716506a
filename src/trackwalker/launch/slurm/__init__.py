"""Slurm as the scheduler: what we ask of it, and what its answers mean."""
