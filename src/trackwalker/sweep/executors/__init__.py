"""Where trials run: Slurm, this machine."""
