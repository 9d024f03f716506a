"""Reading metrics: a private Prometheus over any job's database, PromQL to arrays, and how far to trust them."""
