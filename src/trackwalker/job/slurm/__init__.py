"""What Slurm says, in our words: for those who launch, watch and read jobs alike."""
