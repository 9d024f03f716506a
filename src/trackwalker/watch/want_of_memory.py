"""Whether a job that its scheduler calls failed ran out of memory: as the kernel told the agent, or Slurm the log.

Slurm says OUT_OF_MEMORY only of a batch script that was killed. Ours starts one agent on each node with srun: when the
kernel kills a rank there, the step ran out of memory and the job merely failed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trackwalker.job.ending import of_events, of_log, tail_of
from trackwalker.job.slurm.states import JobState
from trackwalker.launch.standing import Standing


def told_apart(seen: Standing, events: list[dict[str, Any]], log: Path | None) -> Standing:
    """The same end, as `oom` where that is what it was; `events` are those of the last attempt."""
    if seen.state != "failed" or not (of_events(events).memory or (log is not None and of_log(tail_of(log)).memory)):
        return seen
    known = JobState("", "oom")
    return replace(seen, state=known.state, exit=known.exit, meaning=known.meaning)


def killed_ranks(events: list[dict[str, Any]]) -> set[Any]:
    """Ranks that the kernel killed for want of memory, as their agents saw it."""
    return {event.get("rank") for event in events if event.get("kind") == "kernel-kill"}
