"""`python -m trackwalker.observe.ray_cluster`: the process that holds Ray, and one Ray actor for every rank.

The only one of ours that imports Ray. It shares nothing with training: ranks are the agent's, actors only know their
process ids. It may die or hang at any time; the keeper (`observe/ray.py`) ends whatever is left and starts another.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shlex
import shutil
import signal
import sys
import time
from functools import partialmethod
from pathlib import Path
from typing import Any

import ray
from ray._private.parameter import RayParams

from trackwalker.job.processes import read_bytes, read_stat, session_members
from trackwalker.job.whole import write_whole

_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0
_OBJECT_STORE = 80_000_000  # Ray's smallest: nothing is ever put into it


# Stacks of the training processes in Ray's dashboard.
_SCRIPT = """#!/bin/sh
before=
for word; do
  shift
  case $before in
    -p | --pid) [ -r {ranks}/"$word" ] && word=$(cat {ranks}/"$word") ;;
  esac
  set -- "$@" "$word"
  before=$word
done
exec {pyspy} "$@"
"""


def find_pyspy() -> str | None:
    """The real py-spy: of this environment, else of PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def write_wrapper(folder: Path, ranks: Path, pyspy: str) -> None:
    """Put the script into `folder`, which Ray's processes have first on their PATH."""
    folder.mkdir(exist_ok=True)
    script = folder / "py-spy"
    # Paths stand in the text: under sudo, which Ray uses where it may, no variable of ours would arrive.
    script.write_text(_SCRIPT.format(ranks=shlex.quote(str(ranks)), pyspy=shlex.quote(pyspy)))
    script.chmod(0o755)


def point(ranks: Path, worker: int, training: int) -> None:
    """Have questions about the Ray worker answered with the training process."""
    write_whole(ranks / str(worker), str(training))


def why_no_stacks(training: int) -> str | None:
    """Why py-spy could not look into that process, None if it can; nothing is attached to find out."""
    if find_pyspy() is None:
        return "py-spy is not installed: pip install 'trackwalker[ray]'"
    try:
        # Opening another process's memory passes the same kernel checks as attaching to it.
        os.close(os.open(f"/proc/{training}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return (
            "the kernel forbids looking into other processes (ptrace): allow it with "
            "sysctl kernel.yama.ptrace_scope=0, or give the container CAP_SYS_PTRACE"
        )
    except OSError:
        return None  # it has just ended: no evidence either way
    return None


class Rank:
    """A rank as Ray sees it: a worker that does nothing but stand for a training process."""

    def __init__(self, rank: int, host: str, training: int, ranks: str) -> None:
        self._text = f"rank {rank} on {host}, training process {training}"
        self._ranks = Path(ranks)
        self.hold(training)

    def hold(self, training: int) -> None:
        """Stand for this process from now on."""
        point(self._ranks, os.getpid(), training)

    def __repr__(self) -> str:
        return self._text


def main() -> int:
    """Start Ray, say where it is, and follow the ranks until a signal ends us."""
    parser = argparse.ArgumentParser(prog="python -m trackwalker.observe.ray_cluster", description=__doc__)
    parser.add_argument("--job-dir", type=Path, required=True, help="the job's directory")
    parser.add_argument("--home", type=Path, required=True, help="Ray's folder on this machine")
    parser.add_argument("--dashboard-port", type=int, required=True)
    parser.add_argument("--metrics-port", type=int, required=True)
    options = parser.parse_args()
    _tie_to_parent()
    os.nice(10)  # and all of Ray with us: training comes first
    signal.signal(signal.SIGTERM, _end)
    # The one port that `ray.init` has no argument for: fixed, a second Ray on this machine would be without stacks.
    RayParams.__init__ = partialmethod(RayParams.__init__, dashboard_agent_listen_port=0)
    context: Any = ray.init(
        address="local",  # never somebody else's cluster, whatever the environment says
        namespace="trackwalker",
        num_cpus=1,
        num_gpus=0,
        object_store_memory=_OBJECT_STORE,
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        dashboard_port=options.dashboard_port,
        log_to_driver=False,
        _metrics_export_port=options.metrics_port,
        _temp_dir=str(options.home),
    )
    signal.signal(signal.SIGTERM, _end)  # Ray has put its own in place
    about = context.address_info
    up = {
        "address": about["gcs_address"],
        "session": about["session_dir"],
        "node_id": about["node_id"],
        "parts": [[pid, stat.start, _program(pid)] for pid in _children() if (stat := read_stat(pid))],
    }
    write_whole(options.home / "up.json", json.dumps(up))
    _follow_ranks(options.job_dir / "agent" / "state.json", options.home / "ranks")
    return 0


def _tie_to_parent() -> None:
    """Have the kernel tell us to end when the keeper dies, even by SIGKILL."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent or parent == 1:
        sys.exit(1)  # it died before the line above took hold


def _end(number: int, frame: object) -> None:
    """End all of Ray at once: it has nothing to save, and left to itself some of it stays for good."""
    for pid in session_members(os.getpid()):
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _children() -> list[int]:
    found = []
    for task in os.listdir("/proc/self/task"):
        found += [int(pid) for pid in (read_bytes(f"/proc/self/task/{task}/children") or b"").split()]
    return found


def _program(pid: int) -> str:
    """raylet, gcs_server, dashboard.py: the program's name, or that of its script."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    return Path(next((word for word in words if word.endswith(".py")), words[0])).name


def _follow_ranks(state: Path, ranks: Path) -> None:
    actors: dict[int, tuple[Any, int]] = {}
    remote: Any = ray.remote(num_cpus=0, max_restarts=-1)(Rank)
    while True:
        for rank, host, training in _ranks_in(state):
            actor, known = actors.get(rank, (None, 0))
            if actor is None:
                actor = remote.options(name=f"trackwalker_rank_{rank}").remote(rank, host, training, str(ranks))
            elif known != training:
                actor.hold.remote(training)
            actors[rank] = (actor, training)
        time.sleep(_LOOK_S)


def _ranks_in(state: Path) -> list[tuple[int, str, int]]:
    try:
        found = [r for r in json.loads(state.read_bytes())["ranks"] if r["main"] and r["exit"] is None]
        return [(int(r["rank"]), str(r["host"]), int(r["main"])) for r in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # not written yet, or unreadable for a moment


if __name__ == "__main__":
    sys.exit(main())
