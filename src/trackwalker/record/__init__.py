"""A run, read once: its log, its steps, its clock, how it stands. Everything that reads a job takes it from here.

For other rooms: `read` (a run, read once); `steps` (its steps); `timeline` (when they were); `masks` (which say nothing
about speed); `phases` (where it was slow); `speeds` (two runs, step by step); `clock` (whose clock says so); `stall`
(silence); `status` (how it stands); `projection` (how far it came); `journal` (progress.jsonl); `accounting` (the
scheduler's word); `checkpoints` (what was saved); `event_files` (TensorBoard files); `topology` (which rank has which
GPU); `capsules` (evidence that was collected); `line_clock` (when a line was written, and steps by the lines around
them); `pattern` (the shape of its speed); `goodput` (where the time went).
"""
