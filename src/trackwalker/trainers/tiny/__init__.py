"""A real, small data-parallel transformer trainer in JAX that logs as MaxText does: our workload in tests and demos."""
