"""How a rank is put into a container: docker, podman, apptainer, or none."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trackwalker.node.runtimes.apptainer import Apptainer
from trackwalker.node.runtimes.container import OrderError, Runtime
from trackwalker.node.runtimes.docker import Docker
from trackwalker.node.runtimes.native import Native
from trackwalker.node.runtimes.podman import podman_here
from trackwalker.node.sensors.commands import Answer, ask

_INFO_S = 10.0


class Offer(NamedTuple):
    """A runtime as `--runtime` names it: who makes it (told where image files are kept), and what asks if it works."""

    make: Callable[[str], Runtime]
    probe: str = "info"  # the program's own command that fails where this user cannot use it


# A new runtime is a file beside this one and a row here. The order is that of `auto`. Podman first: no service and no
# root, the container lives and dies with the job's own processes. Docker next: it is what most images are tried with.
# Apptainer last: it has to convert the image into a file first.
RUNTIMES: dict[str, Offer] = {
    "podman": Offer(lambda cache: podman_here()),
    "docker": Offer(lambda cache: Docker()),
    "apptainer": Offer(Apptainer, probe="version"),
}
ORDER = tuple(RUNTIMES)
NAMES = (*ORDER, "native")


@dataclass(frozen=True)
class Detected:
    """The runtime that was chosen, and a line for each that was looked at."""

    runtime: Runtime
    looked_at: tuple[str, ...]


def runtime_named(name: str, cache: str) -> Runtime:
    """A runtime by its name; `cache` is where one without a store keeps image files."""
    if name == "native":
        return Native()
    if name not in RUNTIMES:
        raise OrderError(f"no runtime '{name}': {', '.join(NAMES)}")
    return RUNTIMES[name].make(cache)


def detect(cache: str, wanted: str = "") -> Detected:
    """The first runtime that answers, or the wanted one; it is never called through sudo."""
    if wanted == "native":
        return Detected(Native(), ("native: asked for",))
    looked_at = []
    for name in (wanted,) if wanted else ORDER:
        runtime = runtime_named(name, cache)
        why_not = _why_not(name)
        looked_at.append(f"{name}: {why_not or 'answers'}")
        if not why_not:
            return Detected(runtime, tuple(looked_at))
    raise OrderError(
        f"no container runtime can be used here ({'; '.join(looked_at)}); --runtime native runs without one"
    )


def _why_not(name: str) -> str:
    """Why a runtime cannot be used by this user; empty when it can."""
    if shutil.which(name) is None:
        return "not installed"
    answer = ask([name, RUNTIMES[name].probe], _INFO_S)
    return "" if answer.code == 0 else _advice(name, answer)


def _advice(name: str, answer: Answer) -> str:
    text = answer.error or answer.output
    if answer.code is None:
        return f"installed, but {text}"
    if "permission denied" in text.lower():
        group = "join the group 'docker'" if name == "docker" else "set up user namespaces"
        return f"not allowed for this user; {group} or choose another --runtime (sudo is never used)"
    if "cannot connect" in text.lower():
        return "installed, but its service does not run"
    last = [row.strip() for row in text.splitlines() if row.strip()][-1:]
    return f"installed, but fails: {last[0] if last else f'exit code {answer.code}'}"


def gpu_vendor(dev: Path = Path("/dev")) -> str:
    """amd, nvidia or nothing, by the devices that are there."""
    if (dev / "kfd").exists():
        return "amd"
    return "nvidia" if (dev / "nvidiactl").exists() or shutil.which("nvidia-smi") else ""


def gpu_warning(vendor: str) -> str:
    """The line that log readers know when a machine has no GPU; empty when it has."""
    return "" if vendor else "WARNING: No GPU devices detected (no /dev/kfd, no nvidia-smi)"


def fabric_devices(dev: Path = Path("/dev")) -> list[str]:
    """RDMA devices, for the order: without them NCCL falls back to TCP without a word."""
    return [str(dev / "infiniband")] if (dev / "infiniband").is_dir() else []


def training_limits() -> dict[str, int]:
    """RDMA pins memory, ranks open a socket to every other, and a crash shall leave a core."""
    return {"memlock": -1, "nofile": max(_open_files(), 65536), "core": -1}


def caller_groups() -> list[str]:
    """The groups of this user, which own devices and shared folders."""
    return [str(g) for g in sorted(set(os.getgroups()) - {0})]


def _open_files() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 1048576 if hard == resource.RLIM_INFINITY else hard
