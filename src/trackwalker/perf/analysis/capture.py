"""Asking a running job of ours for a trace: a small file in its directory that every rank honours at the same step."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord, load_run
from trackwalker.job.whole import write_whole
from trackwalker.launch.job_state import standing
from trackwalker.record.journal import read_progress
from trackwalker.trainers.capture import LATE, REQUEST

_AHEAD_S = (2.0, 8.0, 30.0)  # by then every rank has seen the request; further ahead each time that one had not
_MOST_STEPS = 1000
_LOOK_S = 0.5
_ASK_S = 5.0
_YOUNG_S = 60.0


@dataclass
class Captured:
    """What came of a request."""

    request: str
    first_step: int
    last_step: int
    ranks: list[int] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    complete: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        errors = {str(rank): said for rank, said in self.errors.items()}
        return {"schema": "trackwalker.capture/1", **vars(self), "errors": errors}


@dataclass
class _Progress:
    last: int | None
    seconds: float
    ranks: set[int]


def capture(
    job: Job, steps: int, *, python: bool = False, timeout_s: float = 300.0, say: Callable[[str], None] | None = None
) -> Captured:
    """Ask for a trace of the next steps and wait until every rank has written its own."""
    if not 1 <= steps <= _MOST_STEPS:
        raise UsageError(f"--steps {steps}: between 1 and {_MOST_STEPS}")
    run = load_run(job.run_json)
    if job.dir is None or run is None:
        raise UsageError(f"{job.label} was not started by trackwalker: set profiler=xplane in its config instead")
    if _has_ended(job, run):
        raise UsageError(f"{job.label} has ended: only a running job can be traced")
    deadline = time.monotonic() + timeout_s
    now = _first_step(job, run, deadline, say)
    if now.last is None:
        raise UsageError(f"{job.label} has not completed a step yet; ask again when it trains")
    for ahead_s in _AHEAD_S:
        out = _ask(job, run, steps, python, now, ahead_s)
        if say is not None:
            say(f"asked {job.label} for steps {out.first_step} to {out.last_step}")
        try:
            _wait(job, run, out, len(run.ranks) or len(now.ranks), deadline)
        finally:
            (job.dir / REQUEST).unlink(missing_ok=True)
        if LATE not in out.errors.values():
            break
        now = _progress(job)  # a busy machine: further ahead
    return out


def _ask(job: Job, run: RunRecord, steps: int, python: bool, now: _Progress, ahead_s: float) -> Captured:
    first = (now.last or 0) + 2 + math.ceil(ahead_s / max(now.seconds, 1e-3))
    total = int(run.config["steps"].value) if "steps" in run.config else None
    if total is not None and first + steps > total:
        raise UsageError(f"{job.label} ends at step {total - 1}: there are not {steps} steps left to trace")
    out = Captured(secrets.token_hex(4), first, first + steps - 1)
    assert job.dir is not None  # noqa: S101
    _write(job.dir / REQUEST, {"v": 1, "id": out.request, "from_step": first, "steps": steps, "python": python})
    return out


def _has_ended(job: Job, run: RunRecord) -> bool:
    """Whether the run is over; one that was started a moment ago may not have written down its processes yet."""
    young = time.time() - run.created < _YOUNG_S and (job.state is None or not job.state.exists())
    return not young and standing(job).ended


def _first_step(job: Job, run: RunRecord, deadline: float, say: Callable[[str], None] | None) -> _Progress:
    """Where the run stands; one that still compiles is waited for."""
    now = _progress(job)
    if now.last is None and say is not None:
        say(f"{job.label} has not completed a step yet: waiting for its first")
    while now.last is None and time.monotonic() < deadline and not _has_ended(job, run):
        time.sleep(_LOOK_S)
        now = _progress(job)
    return now


def _progress(job: Job) -> _Progress:
    done = read_progress(job.progress).done
    recent = sorted(d.seconds for d in done[-64:] if math.isfinite(d.seconds))
    usual = recent[len(recent) // 2] if recent else 1.0
    return _Progress(max((d.step for d in done[-64:]), default=None), usual, {d.rank for d in done})


def _wait(job: Job, run: RunRecord, out: Captured, ranks: int, deadline: float) -> None:
    asked = time.monotonic()
    while True:
        for done in read_progress(job.progress).pauses:
            if done.phase != "capture" or done.state != "end" or done.request != out.request or done.rank in out.ranks:
                continue
            out.ranks.append(done.rank)
            if done.error:
                out.errors[done.rank] = done.error
            elif done.folder not in out.folders:
                out.folders.append(done.folder)
        out.ranks.sort()
        out.complete = len(out.ranks) >= ranks and not out.errors
        if len(out.ranks) >= ranks or time.monotonic() > deadline:
            return
        if time.monotonic() - asked > _ASK_S:  # a scheduler is not asked all the time
            asked = time.monotonic()
            if _has_ended(job, run):
                return
        time.sleep(_LOOK_S)


def _write(path: Path, request: dict[str, Any]) -> None:
    try:
        write_whole(path, json.dumps(request) + "\n")
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror}; a trace can be asked for by the job's owner only") from e
