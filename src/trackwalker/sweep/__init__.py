"""Many short jobs, one answer: sweeps that plan, run, watch, stop early, resume and report.

For other rooms: `model` (what a strategy answers); `strategies` (the kinds); `plan` (a sweep as it was asked for);
`state` (how far it is); `engine_run` (its running); `report` (its answer).
"""
