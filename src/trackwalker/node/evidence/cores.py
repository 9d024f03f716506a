"""The cores of one node's part of a job: allowed before training, brought into the job directory after a crash."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trackwalker.node.evidence import coredump
from trackwalker.node.stages.order import Seat

_DUMPING = frozenset(
    128 + number
    for number in (
        *(signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
        *(signal.SIGQUIT, signal.SIGTRAP, signal.SIGSYS),
    )
)
_STOPPED_WAIT_S = 10.0  # Slurm kills 30 s after it has told a job to end
_WAIT_S = 900.0  # cores of large ranks have 35-120 GB
_KNOB = "COREDUMP_WAIT_TIMEOUT"  # upstream's, in seconds


class Cores:
    """What a crash of this node's ranks leaves behind; `folder` is where they start, and so where a core lands."""

    def __init__(self, job_dir: Path, seat: Seat, folder: str, say: Callable[..., None]) -> None:
        self._job_dir, self._seat, self._say = job_dir, seat, say
        self._folder = Path(folder or os.getcwd())
        self._pattern = coredump.read_pattern()

    def enable(self) -> None:
        """Lift the limit for the ranks; the first node says what a crash will leave, the others only what is amiss."""
        lines = coredump.enable()
        warnings = [line for line in lines if "WARNING" in line]
        if self._seat.is_head:
            self._say(*lines)
        else:
            self._say(*(f"{self._seat.host}: {line}" for line in warnings))
        if not warnings and self._unwritable():
            self._say(f"[coredump] WARNING: {self._seat.host}: {self._folder} cannot be written: no core will be kept")

    def collect(self, events: Sequence[Mapping[str, Any]], began: float) -> None:
        """After the run: the cores of ranks that crashed, or why there are none; a cancelled job waits briefly."""
        mine = [e for e in events if e.get("node") == self._seat.host and e.get("rank") is not None]
        crashed = {int(e["rank"]) for e in mine if e.get("kind") == "rank-exit" and e["data"].get("exit") in _DUMPING}
        if not crashed:
            return
        pids = {int(e["data"]["pid"]): int(e["rank"]) for e in mine if e.get("kind") == "rank-start"}
        cancelled = any(e.get("kind") == "stop" and e["data"].get("why") == "cancelled" for e in events)
        wait_s = _STOPPED_WAIT_S if cancelled else _waiting()
        found = coredump.collect(
            self._job_dir, self._seat.job_id, self._seat.host, began, pids, self._folders(), self._say, wait_s
        )
        for rank in sorted(crashed - {core.rank for core in found if core.rank is not None}):
            self._say(f"[coredump] no core of rank {rank} on {self._seat.host}: {self._why_none(found)}")

    def _folders(self) -> list[Path]:
        place = Path(self._pattern).parent if self._pattern.startswith("/") else None
        return [self._folder] if place is None or "%" in str(place) else [self._folder, place]

    def _why_none(self, found: list[coredump.Collected]) -> str:
        if any(core.rank is None for core in found):
            return "one above may be its own: a container has process numbers of its own"
        if resource.getrlimit(resource.RLIMIT_CORE)[0] == 0:
            return "the limit of core files is 0 here"
        if self._pattern.startswith("|"):
            return f"the kernel hands cores to {self._pattern[1:].split(' ')[0]} (coredumpctl may have it)"
        if self._unwritable():
            return f"{self._folder} cannot be written"
        return f"the kernel left none in {', '.join(map(str, self._folders()))} (core_pattern={self._pattern})"

    def _unwritable(self) -> bool:
        return not self._pattern.startswith(("/", "|")) and not os.access(self._folder, os.W_OK)


def _waiting() -> float:
    try:
        return max(0.0, float(os.environ.get(_KNOB) or _WAIT_S))
    except ValueError:
        return _WAIT_S
