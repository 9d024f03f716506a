"""Whether a job that its scheduler calls failed ran out of memory: as the kernel told the agent, or Slurm the log.

Slurm says OUT_OF_MEMORY only of a batch script that was killed. Ours starts one agent on each node with srun: when the
kernel kills a rank there, the step ran out of memory and the job merely failed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from trackwalker.job.dialects import needles
from trackwalker.launch.slurm.states import JobState
from trackwalker.launch.standing import Standing

_TAIL = 1 << 16  # bytes: Slurm says it last
_SLURM = re.compile(rb"slurmstepd[^\n]*: error: Detected \d+ oom[-_]kill event|srun: error: [^\n]*: Out Of Memory")


def told_apart(seen: Standing, events: list[dict[str, Any]], log: Path | None) -> Standing:
    """The same end, as `oom` where that is what it was; `events` are those of the last attempt."""
    if seen.state != "failed" or not (_by_the_kernel(events) or _by_slurm(log)):
        return seen
    known = JobState("", "oom")
    return replace(seen, state=known.state, exit=known.exit, meaning=known.meaning)


def killed_ranks(events: list[dict[str, Any]]) -> set[Any]:
    """Ranks that the kernel killed for want of memory, as their agents saw it."""
    return {event.get("rank") for event in events if event.get("kind") == "kernel-kill"}


def _by_the_kernel(events: list[dict[str, Any]]) -> bool:
    first = [event.get("rank") for event in events if event.get("kind") == "first-failure"]
    return bool(killed_ranks(events) & set(first))


def _by_slurm(log: Path | None) -> bool:
    if log is None:
        return False
    try:
        with log.open("rb") as f:
            f.seek(max(0, f.seek(0, 2) - _TAIL))
            tail = f.read(_TAIL)
    except OSError:
        return False
    # Whoever trained on afterwards did not end by it.
    last = max((tail.rfind(needle) for needle in needles()), default=-1)
    return _SLURM.search(tail, max(last, 0)) is not None
