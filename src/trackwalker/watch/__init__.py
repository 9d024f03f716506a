"""Following a run while it runs.

For other rooms: `service` (the daemon); `config` (its settings); `incident` (what it noticed); `detect.live` (a job as
it runs); `supervise.resume` (another attempt by policy).
"""
