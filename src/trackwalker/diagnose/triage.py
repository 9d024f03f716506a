"""Triage: what happened, from the log alone."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from trackwalker.diagnose.pattern import WARM_UP, Pattern, pattern_of
from trackwalker.errors import NotAJobError
from trackwalker.job import journal
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.logs.index import LogIndex, index_logs, rank_files
from trackwalker.logs.roles import Finding, Roles, Stall, assign

SCHEMA = "trackwalker.triage/1"
_CANCELS = (130, 143)
_START_UP_S = 900.0  # collective set-up, compile and restore leave no time in most logs


@dataclass
class Progress:
    """How far the run came and what it would lose (spec 2.6)."""

    start: str | None = None  # fresh, or restored from which step
    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    steps_this_run: int | None = None
    done: float | None = None
    step_time_s: float | None = None
    tgs: float | None = None
    training_s: float | None = None
    wall_s: float | None = None
    setup_s: float | None = None
    gap_s: float | None = None
    checkpoint_period: int | None = None
    last_checkpoint: int | None = None
    steps_lost: int | None = None
    remaining_s: float | None = None
    behind: dict[int, int] = field(default_factory=dict)  # ranks whose last step is not the run's


@dataclass
class Triage:
    """The answer, with the lines it rests on."""

    job: Job
    status: str
    roles: Roles
    progress: Progress
    pattern: Pattern
    phase: str
    summary: str
    next: list[str]
    index: LogIndex
    seconds: float

    @property
    def primary(self) -> Finding | None:
        """The failure class that comes first."""
        return self.roles.primary

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `triage --json`."""
        index = self.index
        return {
            "schema": SCHEMA,
            "job": {"id": self.job.id, "name": self.job.name, "log": str(self.job.log)},
            "status": self.status,
            "summary": self.summary,
            "primary": _plain(self.primary),
            "findings": [_plain(f) for f in self.roles.findings],
            "first_failing": {
                "rank": self.roles.first_rank, "host": self.roles.first_host, "says": self.roles.first_says,
            },
            "phase": self.phase,
            "progress": _finite(asdict(self.progress)),
            "throughput": _finite(asdict(self.pattern)),
            "next": self.next,
            "harmless": index.harmless,
            "evidence": {
                "files": index.files, "bytes": index.size, "lines": index.lines, "dialect": index.steps.dialect,
                "cut_off": index.facts.ends_mid_line, "repeats_not_read": index.skipped,
            },
            "cost": {"seconds": round(self.seconds, 3)},
        }  # fmt: skip


def _plain(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None:
        return None
    out = asdict(finding)
    out["tier"] = f"T{finding.tier}" if finding.tier < 8 else "note"
    return _finite(out)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def triage(job: Job) -> Triage:
    """Read a job's logs once and say what happened; nothing of the job is changed."""
    began = time.perf_counter()
    if job.log is None:
        raise NotAJobError(f"{job.label} has no log, so there is nothing to read")
    index = index_logs(job.log, rank_files(job.dir))
    live = is_live(job.state)
    progress = progress_of(index)
    recorded = newer_progress(job)
    if recorded is not None and recorded > (progress.last_step if progress.last_step is not None else -1):
        progress.last_step = recorded  # the log lags behind: the journal is written when a step ends
        _fill_totals(progress, index)
    done = _all_done(progress)
    stall = _stall(index, progress, live, done)
    finished_well = done or (index.facts.summary is not None and index.facts.summary.exit == 0)
    roles = assign(index, stall, finished_well)
    status = status_of(index, progress, roles, live, stall is not None)
    shape = pattern_of(index.steps.step, index.steps.seconds, progress.checkpoint_period)
    phase = _phase(index, progress)
    steps = _next(status, roles, shape)
    summary = _summary(status, roles, progress, shape, phase)
    return Triage(job, status, roles, progress, shape, phase, summary, steps, index, time.perf_counter() - began)


def progress_of(index: LogIndex) -> Progress:
    """Every formula of spec 2.6 that the log can feed."""
    facts, steps = index.facts, index.steps
    out = Progress(total_steps=facts.number("steps"))
    if out.total_steps is None and steps.total is not None:
        out.total_steps = steps.total + (1 - steps.first_number if steps.first_number == 0 else 0)
    out.checkpoint_period = _period(index)
    out.wall_s = facts.summary.wall_s if facts.summary else None
    out.setup_s = float(sum(s.seconds or 0 for s in facts.stages if s.what == "END" and s.name != "Training")) or None
    if not len(steps):
        return out
    # A restart repeats steps: the last attempt counts for the speed, every second counts for the time spent.
    out.first_step, out.last_step = int(steps.step[0]), steps.last
    restored = facts.restored
    if restored is not None:
        out.start = f"restored from step {restored}"
    elif out.first_step == steps.first_number:
        out.start = "fresh"
    elif facts.header or facts.config:
        out.start = f"restored from step {out.first_step - 1}"
    out.steps_this_run = 1 + int(np.count_nonzero(np.diff(np.sort(steps.step))))
    steady = steps.seconds[WARM_UP:] if len(steps) > 2 * WARM_UP else steps.seconds
    if np.isfinite(steady).any():
        out.step_time_s = round(float(np.nanmedian(steady)), 3)
        out.training_s = round(float(np.nansum(steps.seconds)), 1)
    tgs = steps.tgs[WARM_UP:] if len(steps) > 2 * WARM_UP else steps.tgs
    if np.isfinite(tgs).any():
        out.tgs = round(float(np.nanmedian(tgs)), 1)
    _fill_totals(out, index)
    return out


def _fill_totals(out: Progress, index: LogIndex) -> None:
    last = out.last_step
    if last is None:
        return
    first_number = index.steps.first_number
    if out.total_steps:
        out.done = round(min(1.0, (last + 1 - first_number) / out.total_steps), 4)
        left = max(0, out.total_steps - 1 + first_number - last)
        out.remaining_s = round(left * out.step_time_s, 1) if out.step_time_s is not None else None
    if out.wall_s is not None and out.training_s is not None:
        out.gap_s = round(out.wall_s - out.training_s - (out.setup_s or 0.0), 1)
    known = {s for s in index.facts.saves if s <= last}
    if index.facts.restored is not None:
        known.add(index.facts.restored)
    # The step-0 save holds nothing that was learned; an announced period is no proof that a save was committed.
    out.last_checkpoint = max(known, default=None)
    if out.last_checkpoint is not None:
        out.steps_lost = last - out.last_checkpoint
    elif out.checkpoint_period is None and index.facts.setting("enable_checkpointing") is not None:
        out.steps_lost = out.steps_this_run
    slow = {
        r: s for r, s in index.steps.last_by_rank.items() if s < last - 3
    }  # lines of ranks interleave: a step or two is no lag
    out.behind = dict(sorted(slow.items(), key=lambda item: item[1])[:16])


def _period(index: LogIndex) -> int | None:
    enabled = (index.facts.setting("enable_checkpointing") or "").lower()
    if enabled not in ("true", "1", "yes", ""):
        return None
    period = index.facts.number("checkpoint_period")
    return period if period and period > 0 else None


def _all_done(progress: Progress) -> bool:
    return progress.done is not None and progress.done >= 1.0


def _stall(index: LogIndex, progress: Progress, live: bool, done: bool) -> Stall | None:
    """Unaccounted wall time far beyond start-up (2.7), or a live run silent far longer than its own steps (2.6)."""
    if done or progress.step_time_s is None:
        return None
    slowest = float(np.nanquantile(index.steps.seconds, 0.99))
    limit = max(300.0, 6.0 * slowest) + _START_UP_S
    if progress.gap_s is not None and progress.gap_s > limit:
        minutes = progress.gap_s / 60
        return Stall(progress.gap_s, f"{minutes:.0f} minutes of wall time are not accounted for by steps or set-up")
    silent = index.silent_s
    if silent is not None and silent > max(1800.0, 6.0 * slowest):
        return Stall(silent, f"the log goes on for {silent / 60:.0f} minutes without a step")
    return None


def status_of(index: LogIndex, progress: Progress, roles: Roles, live: bool, stalled: bool) -> str:
    """The status table of spec 2.2; a file's age is never taken for progress."""
    summary, done = index.facts.summary, _all_done(progress)
    codes = [e.code for e in index.facts.exits]
    if summary is not None:
        if summary.exit is None:
            return "completed" if done else "indeterminate"
        if summary.exit == 0:
            return "completed" if done or progress.total_steps is None else "completed-short"
        if done:
            return "soft-success"
        only_terminated = bool(codes) and all(c == 143 for c in codes) and "exit=143" in summary.reason
        return "cancelled" if summary.exit in _CANCELS or only_terminated else "failed"
    if done and not live:
        return "completed"
    if live:
        if progress.last_step is None:
            return "initialising"
        return "hanging" if stalled else "running"
    primary = roles.primary
    if primary is None:
        return "unknown-death" if index.facts.ends_mid_line and index.facts.header else "indeterminate"
    if primary.id == "hang":
        return "hanging"
    return "cancelled" if primary.tier == 5 else "failed"


def _phase(index: LogIndex, progress: Progress) -> str:
    facts = index.facts
    if progress.last_step is not None:
        return "training" if not _all_done(progress) else "teardown"
    if facts.barrier_ranks:
        return "before the first step (first collective or compile)"
    if facts.params_ranks:
        return "compile"
    begun = [s.name for s in facts.stages if s.what == "BEGIN"]
    ended = {s.name for s in facts.stages if s.what == "END"}
    open_stages = [name for name in begun if name not in ended]
    return open_stages[-1].lower() if open_stages else "unknown"


def _next(status: str, roles: Roles, shape: Pattern) -> list[str]:
    primary = roles.primary
    if primary is not None and primary.next:
        return list(primary.next)
    if status in ("soft-success",):
        return ["do not resubmit: every step was completed; check that the last checkpoint was committed"]
    if shape.name in ("constant-drop", "phased", "gradual"):
        return ["trackwalker diagnose JOB: the log shows that it slowed down, telemetry shows which host"]
    if status == "indeterminate":
        return ["ask the scheduler whether the job still runs: the log alone cannot tell a hang from a death"]
    if status == "unknown-death":
        return ["ask the scheduler (sacct) and the kernel log of the nodes; the log stops without a reason"]
    if status == "completed-short":
        return ["find out why fewer steps were run than configured: data ended, or a limit was set"]
    return []


def _summary(status: str, roles: Roles, progress: Progress, shape: Pattern, phase: str) -> str:
    parts = []
    primary = roles.primary
    at = f" at step {progress.last_step}" if progress.last_step is not None else ""
    of = f" of {progress.total_steps}" if progress.total_steps and at else ""
    if primary is None:
        parts.append(f"{status}{at}{of}: no failure is visible in the log")
    else:
        where = f" on rank {primary.rank}" if primary.rank is not None else ""
        host = f" ({primary.host})" if primary.host else ""
        parts.append(f"{status}{at}{of}: {primary.cause}{where}{host}" + (f"; {primary.why}" if primary.why else ""))
    mechanism = next((f for f in roles.findings if f.role == "mechanism"), None)
    if mechanism is not None:
        parts.append(f"ended by {mechanism.id}")
    if shape.name not in ("constant", "too-short"):
        parts.append(shape.says)
    return ". ".join(parts)


def newer_progress(job: Job) -> int | None:
    """The last step of progress.jsonl, which is authoritative where there is one."""
    if job.progress is None:
        return None
    steps = [r.get("step") for r in journal.read(job.progress).items if r.get("phase") == "train"]
    return max((s for s in steps if isinstance(s, int)), default=None)
