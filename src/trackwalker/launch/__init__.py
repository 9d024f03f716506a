"""From what the user asked to what runs: model, config, plan, start.

For other rooms: `request.words` (what the user typed); `request.models` (the model files); `request.validate` (whether
it would run); `plan` (a run on this machine); `submission` (a run on a cluster); `schedulers` (who starts it);
`slurm.client` (Slurm's own commands); `job_state` (how a job stands, and its end); `resume` (whether another attempt is
worth it); `ledger` (which nodes had trouble).
"""
