"""Reading metrics: a private Prometheus over any job's database, PromQL to arrays, and how far to trust them.

For other rooms: `store` (a job's metrics, opened); `client` (PromQL to arrays); `query` (the questions); `meaning`
(what a metric means); `coverage` (what was collected); `quality` (how far to trust it).
"""
