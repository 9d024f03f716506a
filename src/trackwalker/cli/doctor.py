"""`trackwalker doctor`: what of this machine Trackwalker can use, and what to do about the rest."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.common.say import say
from trackwalker.job.trust import shared_badly
from trackwalker.node.runtimes import RUNTIMES
from trackwalker.observe.prometheus import ensure_prometheus

SCHEMA = "trackwalker.doctor/1"
_EXTRAS = {
    "tiny": ("jax", "tensorboardX"),
    "ray": ("ray",),
    "tensorboard": ("tensorboard",),
    "perf": ("pyarrow",),
    "agent": ("mcp", "pydantic_ai"),
    "scale": ("numba",),
    "web": ("starlette", "uvicorn"),
}
_ROOM_GIB = 5.0
_ASK_S = 5.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `do` says what to do where something is missing."""

    about: str
    state: Literal["ok", "missing", "problem"]
    says: str
    do: str = ""


def doctor(as_json: AsJson = False, workspace: Workspace = DEFAULT_WORKSPACE) -> int:
    """Check this machine: Python, Prometheus, Slurm, containers, GPUs, RDMA, extras, disk, sharing, clock.

    What is missing is needed by some commands only. Exit codes: 0 nothing stands in the way, 1 there is a problem.
    """
    found = [finding for look in _LOOKS for finding in look(workspace)]
    if as_json:
        print(json.dumps({"schema": SCHEMA, "findings": [asdict(each) for each in found]}, indent=1))
    else:
        for each in found:
            say(f"{each.state:<8}{each.about:<12}{each.says}" + (f"; {each.do}" if each.do else ""))
    return 1 if any(each.state == "problem" for each in found) else 0


def _python(workspace: Path) -> Iterator[Finding]:
    yield Finding("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _prometheus(workspace: Path) -> Iterator[Finding]:
    from trackwalker.observe.prometheus import find_prometheus

    path = find_prometheus()
    if path is None:
        yield Finding("Prometheus", "missing", "needed to record and to read metrics", "run: trackwalker setup")
    else:
        yield Finding("Prometheus", "ok", str(path))


def _slurm(workspace: Path) -> Iterator[Finding]:
    if shutil.which("sbatch") is None:
        yield Finding("Slurm", "missing", "no sbatch here: submit works on a machine of the cluster")
        return
    from trackwalker.errors import TrackwalkerError
    from trackwalker.launch.slurm.client import Slurm

    try:
        nodes = Slurm(ask_s=_ASK_S).nodes()
    except TrackwalkerError as e:
        yield Finding("Slurm", "missing", str(e))
        return
    down = [node.name for node in nodes if node.state.startswith(("down", "drain", "fail"))]
    yield Finding("Slurm", "ok", f"{len(nodes)} nodes" + (f", not in service: {', '.join(down[:5])}" if down else ""))


def _containers(workspace: Path) -> Iterator[Finding]:
    here = [name for name in RUNTIMES if shutil.which(name)]
    if here:
        yield Finding("containers", "ok", ", ".join(here))
    else:
        yield Finding("containers", "missing", f"none of {', '.join(RUNTIMES)}: --image cannot be used on this machine")


def _gpus(workspace: Path) -> Iterator[Finding]:
    nvidia = sorted(Path("/proc/driver/nvidia/gpus").glob("*")) if Path("/proc/driver/nvidia").is_dir() else []
    amd = [p for p in Path("/sys/class/drm").glob("card*/device/vendor") if _text(p) == "0x1002"]
    if nvidia or amd:
        yield Finding("GPUs", "ok", ", ".join(f"{len(n)} {w}" for n, w in ((nvidia, "NVIDIA"), (amd, "AMD")) if n))
    else:
        yield Finding("GPUs", "missing", "none on this machine: training runs on CPUs")


def _rdma(workspace: Path) -> Iterator[Finding]:
    devices = sorted(p.name for p in Path("/sys/class/infiniband").glob("*"))
    if devices:
        yield Finding("RDMA", "ok", ", ".join(devices))
    else:
        yield Finding("RDMA", "missing", "no RDMA device on this machine")


def _extras(workspace: Path) -> Iterator[Finding]:
    for extra, modules in _EXTRAS.items():
        missing = [name for name in modules if find_spec(name) is None]
        if missing:
            remedy = f"pip install 'trackwalker[{extra}]'"
            yield Finding("extra", "missing", f"{extra}: {', '.join(missing)} is not installed", remedy)
        else:
            yield Finding("extra", "ok", extra)


def _disk(workspace: Path) -> Iterator[Finding]:
    there = next(p for p in (workspace.absolute(), *workspace.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free / (1 << 30)
    if not os.access(there, os.W_OK):
        yield Finding("disk", "problem", f"{there} cannot be written", "choose another workspace: -w, JOB_WORKSPACE")
    elif free < _ROOM_GIB:
        yield Finding("disk", "problem", f"{free:.1f} GiB free in {there}", "trackwalker clean --older-than 30d")
    else:
        yield Finding("disk", "ok", f"{free:.0f} GiB free in {there}")


def _shared(workspace: Path) -> Iterator[Finding]:
    """In a workspace of several people everybody's files must stay his own."""
    if why := shared_badly(workspace):
        yield Finding("workspace", "problem", *why.split(": ", 1))
        return
    try:
        open_to_all = bool(workspace.stat().st_mode & 0o022)
        mine = [p.name for p in (workspace / ".submissions", workspace / ".artifacts") if p.exists() and _not_shared(p)]
    except OSError:
        return  # there is none yet: `submit` makes one that is ours
    if open_to_all and mine:
        says = f"several people use {workspace}, and {' and '.join(mine)} in it is one user's: others cannot submit"
        yield Finding("workspace", "problem", says, "its owner or root: install -d -m 1777 it (docs/why/security.md)")
    else:
        yield Finding(
            "workspace", "ok", "shared and sticky" if open_to_all else f"nobody else can write to {workspace}"
        )


def _not_shared(folder: Path) -> bool:
    """Whether others cannot add to a folder."""
    return not folder.stat().st_mode & 0o022


def _clock(workspace: Path) -> Iterator[Finding]:
    """Metrics of many nodes are compared by their times: a clock that nobody sets is worth knowing of."""
    if time.time() < 1.7e9:
        yield Finding("clock", "problem", f"it is {time.strftime('%Y-%m-%d')} here", "set the clock, and run NTP")
        return
    if shutil.which("timedatectl") is None:
        yield Finding("clock", "ok", "the clock looks right; could not check whether NTP sets it (no timedatectl)")
        return
    argv = ["timedatectl", "show", "-p", "NTPSynchronized", "--value"]
    try:
        said = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    if said == "no":
        yield Finding("clock", "problem", "NTP does not set it", "start chrony or systemd-timesyncd")
    else:
        yield Finding(
            "clock",
            "ok",
            "set by NTP" if said == "yes" else "the clock looks right; could not check whether NTP sets it",
        )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


_LOOKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    _python, _prometheus, _slurm, _containers, _gpus, _rdma, _extras, _disk, _shared, _clock,
)  # fmt: skip


def setup() -> None:
    """Find Prometheus or install it for this user; prints where it is."""
    print(ensure_prometheus(print))
