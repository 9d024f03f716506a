"""Where a plan is started: one file per scheduler."""
