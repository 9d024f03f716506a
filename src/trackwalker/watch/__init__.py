"""Following a run while it runs.

For other rooms: `service` (the daemon); `incident` (what it noticed); `memory` (what it remembers); `jobs` (a job that
is watched); `detect.live` (a job as it runs); `detect.phases` (what it is doing); `detect.rules` (what counts as
trouble); `detect.confirm` (a second sign of a hang); `notify.message` (what people are told); `supervise.resume`
(another attempt by policy); `supervise.resume_policy` (that policy); `supervise.attempts` (carrying it out).
"""
