"""Many short jobs, one answer: sweeps that plan, run, watch, stop early, resume and report."""
