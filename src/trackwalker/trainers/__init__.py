"""What trainers carry for us: progress records, stacks, traces; our own small trainer, the hook around MaxText."""
