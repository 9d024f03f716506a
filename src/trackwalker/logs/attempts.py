"""A run that was requeued or restarted: one log, several attempts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trackwalker.job.dialects import by_name
from trackwalker.logs.scanning.index import LogIndex


@dataclass(frozen=True)
class Attempt:
    """One go at the run."""

    line: int  # where it begins in the log
    first_step: int | None
    last_step: int | None
    seconds: float  # of its steps
    ended_by: str = ""  # the failure class nearest to a cause among its lines
    relaunched: bool = field(default=False, compare=False)  # by the launcher: everything before belongs to the past


def attempts(index: LogIndex) -> list[Attempt]:
    """The attempts in order; a stage that begins again or a step number that falls back starts a new one."""
    steps = index.steps
    starts: dict[int, bool] = {}
    begun: set[str] = set()
    for stage in index.facts.stages:
        if stage.what != "BEGIN":
            continue
        if stage.name in begun:
            starts[stage.line] = True
            begun = set()
        begun.add(stage.name)
    for requeue in index.facts.requeues:
        # What stands between the scheduler's word and the next attempt's first step are the last words of this one.
        after = steps.line[steps.line > requeue]
        if len(after) and not any(requeue < line <= int(after[0]) for line in starts):
            starts[int(after[0])] = True
    if (dialect := by_name(steps.dialect)) is not None and dialect.counts_on:
        for at in np.flatnonzero(np.diff(steps.step) <= 0) + 1:
            before, here = int(steps.line[at - 1]), int(steps.line[at])
            if not any(before < line <= here for line in starts):
                starts[here] = False
    bounds = sorted(starts)
    first = 1 - sum(index.earlier.values())
    out = []
    for begin, end in zip([first, *bounds], [*bounds, np.inf], strict=True):
        mine = (steps.line >= begin) & (steps.line < end)
        numbers = steps.step[mine]
        out.append(
            Attempt(
                begin,
                int(numbers[0]) if len(numbers) else None,
                int(numbers.max()) if len(numbers) else None,
                float(np.nansum(steps.seconds[mine])),
                _ended_by(index, begin, end) if end < np.inf else "",
                starts.get(begin, False),
            )
        )
    return out


def _ended_by(index: LogIndex, begin: int, end: float) -> str:
    hits = [h for h in index.hits if h.file == index.path.name and begin <= h.line < end and h.signature.order <= 5]
    return min(hits, key=lambda h: (h.signature.order, h.line)).signature.cause if hits else ""


def keep_last(index: LogIndex, attempt: Attempt) -> None:
    """Take out what earlier launches left in the log: their errors, exits and summary say nothing about this one."""
    since, facts = attempt.line, index.facts
    kept = []
    for hit in index.hits:
        if hit.file in index.earlier or (hit.file == index.path.name and hit.last_line < since):
            continue
        hit.line = max(hit.line, hit.last_line) if hit.file == index.path.name and hit.line < since else hit.line
        kept.append(hit)
    index.hits = kept
    facts.exits = [e for e in facts.exits if e.line >= since]
    facts.summary = facts.summary if facts.summary and facts.summary.line >= since else None
    facts.first_failure = facts.first_failure if facts.first_failure and facts.first_failure.line >= since else None
    facts.cancel = facts.cancel if facts.cancel and facts.cancel.line >= since else None
    facts.task_failed = facts.task_failed if facts.task_failed and facts.task_failed.line >= since else None
    facts.finished = facts.finished if facts.finished and facts.finished.line >= since else None
    facts.tracebacks = [t for t in facts.tracebacks if t.line >= since]
    beat = facts.heartbeat
    facts.heartbeat = beat if beat and beat.claim and beat.claim.line >= since else None
