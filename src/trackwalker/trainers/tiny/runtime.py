"""This process among its peers: the environment contract, JAX's start-up settings, joining and leaving the group."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import socket
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackwalker.trainers.tiny.config import Config, ConfigError

if TYPE_CHECKING:
    import numpy as np

# A stopped peer must look like a hang, as it does with NCCL or RCCL, and a slow checkpoint must not end the run.
COLLECTIVE_TIMEOUT_S = 86400

_GPU_NODES = ("/dev/nvidiactl", "/dev/kfd")
_GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm60_plugin", "jax_rocm7_plugin")


# What the trainer says on stdout: MaxText's log lines.
def say(line: str) -> None:
    """Print one line in one write, so that native libraries and sibling ranks do not cut into it.

    On a full disk the line is lost, and training goes on.
    """
    with contextlib.suppress(OSError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def step_line(step: int, seconds: float, tflops: float, tokens: float, weights: int, loss: float, peak: float) -> str:
    """MaxText's line of a completed step; rates are per device, and MFU is there only when the peak is known."""
    parts = [f"completed step: {step}", f"seconds: {seconds:.3f}", f"TFLOP/s/device: {tflops:.3f}"]
    if peak > 0:
        parts.append(f"MFU: {100 * tflops / peak:.2f}%")
    parts += [f"Tokens/s/device: {tokens:.3f}", f"total_weights: {weights}", f"loss: {loss:.3f}"]
    return ", ".join(parts)


@dataclass(frozen=True)
class Place:
    """Which process this is, of how many, and where its peers meet."""

    rank: int
    count: int
    coordinator: str  # host:port; empty for a single process
    host: str
    progress_path: str
    local_device: str  # JAX_LOCAL_DEVICE_IDS, or all

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Place:
        """Read the node agent's environment contract; raises ConfigError when it is malformed."""
        ip = env.get("JAX_COORDINATOR_IP", "")
        count = _env_int(env, "NNODES", 1)
        host = env.get("TRACKWALKER_HOST") or socket.gethostname()
        progress = env.get("TRACKWALKER_PROGRESS", "")
        devices = env.get("JAX_LOCAL_DEVICE_IDS") or "all"
        if count <= 1 or not ip:
            return cls(0, 1, "", host, progress, devices)
        rank = _env_int(env, "NODE_RANK", -1)
        if not 0 <= rank < count:
            raise ConfigError(
                f"environment NODE_RANK must be in 0..{count - 1} (NNODES={count}), got '{env.get('NODE_RANK', '')}'"
            )
        port = _env_int(env, "JAX_COORDINATOR_PORT", 0)
        if not 0 < port < 65536:
            raise ConfigError(f"environment JAX_COORDINATOR_PORT={port} is not a port")
        address = f"[{ip}]" if ":" in ip else ip
        return cls(rank, count, f"{address}:{port}", host, progress, devices)


def _env_int(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"environment {name} must be a whole number, got '{text}'") from None


def prepare_environment(env: MutableMapping[str, str], *, gpu: bool, jaxlib: tuple[int, ...]) -> None:
    """Set what JAX reads at import and the user did not: the platform, and a modest share of the CPU."""
    if not env.get("JAX_PLATFORMS") and not gpu:
        env["JAX_PLATFORMS"] = "cpu"
    # One compute thread: several ranks share a small box, and a rank's CPU use stays readable. XLA sizes its pool
    # by NPROC; a bare intra_op_parallelism_threads=1 in XLA_FLAGS would make it drop every flag that follows.
    # Not with a GPU, whose kernels compile on that pool.
    if env.get("JAX_PLATFORMS") == "cpu":
        env.setdefault("NPROC", "1")
    wanted = {"xla_cpu_multi_thread_eigen": "--xla_cpu_multi_thread_eigen=false"}
    # XLA aborts on a flag it does not know; this one was checked with jaxlib 0.10 and 0.11.
    if jaxlib >= (0, 10):
        flag = f"--xla_cpu_collective_timeout_seconds={COLLECTIVE_TIMEOUT_S}"
        wanted["xla_cpu_collective_timeout_seconds"] = flag
    flags = env.get("XLA_FLAGS", "")
    added = [flag for name, flag in wanted.items() if name not in flags]
    env["XLA_FLAGS"] = " ".join([flags, *added]).strip()


def gpu_present() -> bool:
    """Whether there is a GPU and a JAX plug-in for it; either alone means CPU."""
    node = any(Path(path).exists() for path in _GPU_NODES)
    return node and any(importlib.util.find_spec(name) is not None for name in _GPU_PLUGINS)


def jaxlib_version() -> tuple[int, ...]:
    """The installed jaxlib's version as numbers, without importing it."""
    release = importlib.metadata.version("jaxlib").split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in release)


def join(place: Place, config: Config) -> None:
    """Import JAX with our settings and, with peers, meet them; blocks until every rank has come or time is up."""
    prepare_environment(os.environ, gpu=gpu_present(), jaxlib=jaxlib_version())
    import jax

    if not place.coordinator:
        return
    settings: Any = jax.config
    settings.update("jax_cpu_collectives_implementation", "gloo")
    # JAX's preemption service swallows SIGTERM; a cancelled run has to die of it.
    settings.update("jax_enable_preemption_service", False)
    heartbeat = config.jax_distributed_heartbeat_timeout_seconds
    init = config.jax_distributed_initialization_timeout
    say(
        f"[jax-preinit] nprocs={place.count} rank={place.rank} local_device={place.local_device}"
        f" heartbeat_timeout_s={heartbeat} init_timeout_s={init}"
    )
    jax.distributed.initialize(
        place.coordinator,
        place.count,
        place.rank,
        # Everything is given, and under Slurm the detection would hide all but one GPU from this process.
        cluster_detection_method="deactivate",
        initialization_timeout=init,
        heartbeat_timeout_seconds=heartbeat,
    )


def barrier(name: str) -> None:
    """Wait for every rank by a real collective."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def from_rank0(value: Any) -> Any:
    """Rank 0's value (numbers, arrays or trees of them, of equal shape everywhere) on every rank, as numpy."""
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.tree_util import tree_map

    return tree_map(np.asarray, multihost_utils.broadcast_one_to_all(value))


def leave(place: Place) -> None:
    """Leave the group together, so that no rank takes another's exit for a crash."""
    if place.coordinator:
        import jax

        group: Any = jax.distributed
        group.shutdown()


def sharding(mesh: Any, *axes: str) -> Any:
    """How an array lies on the mesh: its first dimensions along these axes, or a copy on every device."""
    import jax.sharding

    types: Any = jax.sharding
    return types.NamedSharding(mesh, types.PartitionSpec(*axes))


def replicate(tree: Any, mesh: Any) -> Any:
    """Place a host tree that is equal on every rank as one replicated array per leaf."""
    import jax

    everywhere = sharding(mesh)

    def place_leaf(leaf: np.ndarray) -> Any:
        return jax.make_array_from_callback(leaf.shape, everywhere, lambda index: leaf[index])

    return jax.tree_util.tree_map(place_leaf, tree)
