"""What trainers carry for us: progress records, stacks, traces; our own small trainer, the hook around MaxText.

For other rooms: `capture` (traces on request); `maxtext.__main__` (the hook around MaxText); `tiny.config` (the small
trainer's settings); `tiny.data` (where it can be made to wait).
"""
