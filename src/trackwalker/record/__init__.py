"""A run, read once: its log, its steps, its clock, how it stands. Everything that reads a job takes it from here.

For other rooms: `read` (a run, read once); `steps` (its steps); `timeline` (when they were); `masks` (which say nothing
about speed); `phases` (where it was slow); `clock` (whose clock says so); `stall` (silence); `status` (how it stands);
`projection` (how far it came).
"""
