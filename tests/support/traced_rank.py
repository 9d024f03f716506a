"""One rank of a small data-parallel job on CPUs, with real gloo collectives, traced: python traced_rank.py RANK …

The second argument is the number of ranks, then the coordinator's port, the folder for the trace, the rank that has
more to do and how many times as much. Each rank traces the same steps into a file of its own.
"""

from __future__ import annotations

import os
import sys

rank, world, port, folder, slow, times = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], *map(int, sys.argv[5:7])
os.environ["JAX_PLATFORMS"] = "cpu"

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # a program from a cache has lost where it comes from
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", world, rank)
mesh = Mesh(np.array(jax.devices()), ("data",))
size = 384


def spread(value: np.ndarray) -> jax.Array:
    return jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), value)


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array, rounds: jax.Array) -> jax.Array:
    def local(weights: jax.Array, batch: jax.Array, rounds: jax.Array) -> jax.Array:
        hidden = jax.lax.fori_loop(0, rounds[0], lambda _, h: jnp.tanh(h @ weights), batch[0])
        return weights - 1e-3 * jax.lax.psum(hidden, "data") / size

    specs = (P(), P("data"), P("data"))
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(weights, batch, rounds)


weights = jax.device_put(jnp.ones((size, size), jnp.float32) / size, NamedSharding(mesh, P()))
batch = spread(np.ones((1, size, size), np.float32))
rounds = spread(np.array([2 * times if rank == slow else 2], np.int32))
for _ in range(2):
    weights = jax.block_until_ready(train_step(weights, batch, rounds))
jax.profiler.start_trace(f"{folder}/rank{rank}")
for step in range(8):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        weights = jax.block_until_ready(train_step(weights, batch, rounds))
jax.profiler.stop_trace()
