"""From what the user asked to what runs: model, config, plan, start.

For other rooms: `request.words` (what the user typed); `request.models` (the model files); `request.keys` (which
settings a trainer takes); `request.layers` (which layer sets a variable); `request.resolved` (a model with all its
layers); `request.memory` (what they need of a GPU); `request.validate` (whether it would run); `plan` (a run on this
machine); `submission` (a run on a cluster); `schedulers` (who starts it); `schedulers.local` (on this machine); `here`
(a run that its command stays with); `shell` (a shell with its environment); `schedulers.slurm` (queued by sbatch);
`schedulers.kubernetes` (as pods); `slurm.client` (Slurm's own commands); `slurm.options` (words that are for sbatch);
`slurm.own_script` (a user's own batch script); `recording` (any command, recorded); `attach` (a run that has begun
without us); `code.provenance` (where the code came from); `code.snapshot` (the code, frozen); `code.snapshot_cleanup`
(what of that nobody needs); `job_state` (how a job stands, and its end); `resume` (whether another attempt is worth
it); `resubmit` (the same again); `attempts` (what the next attempt changes); `ledger` (which nodes had trouble).
"""
