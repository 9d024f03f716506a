"""Many short jobs, one answer: sweeps that plan, run, watch, stop early, resume and report.

For other rooms: `model` (what a strategy answers); `strategies` (the kinds); `batch.request` (what is asked of a batch
sweep); `flags.request` (of a sweep of flags); `models.request` (of one over models); `plan` (a sweep as it was asked
for); `budget` (what it may cost); `state` (how far it is); `progress` (who tells of it); `engine_run` (its running);
`executors.protocol` (who runs its jobs); `report` (its answer); `report_text` (that in words).
"""
