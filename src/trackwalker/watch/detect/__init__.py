"""What is wrong with a running job, from its progress, its log, its alerts, and a second signal."""
