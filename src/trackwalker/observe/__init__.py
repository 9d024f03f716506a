"""The recorder: a real Prometheus beside the run, its database mirrored into the job directory."""
