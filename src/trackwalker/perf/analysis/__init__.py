"""Where a step's time goes on a device, and what to fix first."""
