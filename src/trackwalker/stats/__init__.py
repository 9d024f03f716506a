"""Pure functions over numbers: no job, no Prometheus, no files."""
