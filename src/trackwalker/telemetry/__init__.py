"""Reading metrics: a private Prometheus over any job's database, PromQL to arrays, and how far to trust them.

For other rooms: `store` (a job's metrics, opened); `client` (PromQL to arrays); `query` (the questions); `frames` (a
metric of all hosts as one array); `meaning` (what a metric means); `coverage` (what was collected); `quality` (how far
to trust it); `catalogue` (databases of a workspace); `recorded` (metrics of one); `export` (as a file); `serve` (as a
Prometheus); `blocks` (writing one); `foreign.remote` (a store elsewhere); `foreign.names` (its names as ours);
`foreign.borrowed` (a job of it); `foreign.doctor` (what it lacks).
"""
