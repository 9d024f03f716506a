"""The recorder: a real Prometheus beside the run, its database mirrored into the job directory.

For other rooms: `prometheus` (a Prometheus that is found or installed); `tsdb` (its database as files); `tunnel` (how
to reach its pages).
"""
