"""The recorder: a real Prometheus beside the run, its database mirrored into the job directory.

For other rooms: `prometheus` (a Prometheus that is found or installed); `server` (one, running); `login` (who may ask
it); `tsdb` (its database as files); `targets` (what it scrapes); `remote_write` (a store that gets every sample as
well); `tensorboard` (its page); `ray_home` (where Ray is); `tunnel` (how to reach all these pages); `grafana` (boards).
"""
