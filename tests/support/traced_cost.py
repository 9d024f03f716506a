"""One rank of a job on CPUs whose steps cost what their name says, traced: python traced_cost.py RANK RANKS PORT FOLDER

Real gloo collectives run between the ranks. Each kind of step is traced into FOLDER/KIND/rankN.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

rank, world, port, folder = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
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
STEPS = 4
Local = Callable[[jax.Array], jax.Array]


def together(x: jax.Array) -> jax.Array:
    """A sum over the ranks that costs nothing but the meeting: no rank runs ahead."""
    return x - jax.lax.psum(x[:1, :1], "data") / 1e6


def products(x: jax.Array) -> jax.Array:
    """Matrix products."""
    return together(jax.lax.fori_loop(0, 20, lambda _, h: jnp.tanh(h @ x), x))


def gradients(x: jax.Array) -> jax.Array:
    """Hardly any work on a large array, which is then summed over the ranks."""
    return jax.lax.psum(x, "data") / world


def little(x: jax.Array) -> jax.Array:
    """Next to nothing."""
    return together(x)


def moving(x: jax.Array) -> jax.Array:
    """Moves a large array about in memory and computes nothing."""
    for _ in range(12):
        x = jax.lax.optimization_barrier(jnp.concatenate([x[7:], x[:7]]))
    return together(x)


def trace(kind: str, local: Local, side: int, pause_s: float = 0.0) -> None:
    """Trace some steps of a kind."""
    train_step = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False))
    own = np.full((side, side), 1e-3, np.float32)
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), own)
    x = jax.block_until_ready(train_step(x))
    jax.profiler.start_trace(f"{folder}/{kind}/rank{rank}")
    for step in range(STEPS):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            time.sleep(pause_s)  # the wait is the subject: a host that idles between steps
            x = jax.block_until_ready(train_step(x))
    jax.profiler.stop_trace()


trace("compute", products, 512)
trace("communication", gradients, 2048)
trace("host", little, 128, pause_s=0.2)
trace("copy", moving, 2048)
