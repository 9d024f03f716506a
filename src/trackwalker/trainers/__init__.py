"""What trainers carry for us: progress records, stacks, traces; our own small trainer, the hook around MaxText.

For other rooms: `capture` (traces on request); `tiny.config` (the small trainer's settings).
"""
