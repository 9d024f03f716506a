"""Triage: what happened, from the log alone; what else the job left (journal, event file, sacct) sharpens it."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trackwalker.diagnose import accounting as slurm
from trackwalker.diagnose.accounting import Accounting
from trackwalker.diagnose.checkpoints import on_disk
from trackwalker.diagnose.goodput import Goodput, budget, gpu_count
from trackwalker.diagnose.interruptions import interruptions
from trackwalker.diagnose.outcome import Clock, phase_of, stall_of, status_of
from trackwalker.diagnose.pattern import Pattern, pattern_of
from trackwalker.diagnose.projection import Progress, project, save_period
from trackwalker.diagnose.reference import Comparison, Speed, compare, speed_of, with_reference
from trackwalker.diagnose.shown import quote_without_secrets
from trackwalker.diagnose.sources import StepRecord, gather
from trackwalker.diagnose.words import degradation, next_steps, summary_of
from trackwalker.errors import NotAJobError
from trackwalker.job import journal
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.logs.attempts import Attempt, attempts, keep_last
from trackwalker.logs.findings import Finding
from trackwalker.logs.index import LogIndex, index_logs, rank_files
from trackwalker.logs.roles import Roles, assign
from trackwalker.logs.workers import add_earlier, earlier_parts

SCHEMA = "trackwalker.triage/1"
Answer = dict[str, list[dict[str, str]]] | str  # what sacct said about many jobs at once


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
    accounting: Accounting
    goodput: Goodput
    attempts: list[Attempt]
    speed: Speed
    record: StepRecord
    compared: Comparison | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def primary(self) -> Finding | None:
        """The failure class that comes first."""
        return self.roles.primary

    @property
    def failures(self) -> list[Finding]:
        """Every failure class that means something here, the primary first: class, cause, role, ranks, hosts, line."""
        return [f for f in self.roles.findings if f.role != "note"]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `triage --json`."""
        index = self.index
        out = {
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
            "progress": asdict(self.progress),
            "goodput": self.goodput.to_dict(),
            "attempts": [asdict(a) for a in self.attempts],
            "throughput": asdict(self.pattern),
            "reference": self.compared.to_dict() if self.compared else None,
            "accounting": self.accounting.to_dict(),
            "next": self.next,
            "harmless": index.harmless,
            "evidence": {
                "files": index.files, "bytes": index.size, "lines": index.lines, "dialect": index.steps.dialect,
                "cut_off": index.facts.ends_mid_line, "repeats_not_read": index.skipped,
            },
            "cost": {"seconds": round(self.seconds, 3)},
        }  # fmt: skip
        return {name: _finite(value) for name, value in out.items()}


def _plain(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None:
        return None
    return {**asdict(finding), "tier": f"T{finding.tier}" if finding.tier < 8 else "note"}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def triage(job: Job, reference: Speed | None = None, sacct: Answer | None = None) -> Triage:
    """Read a job's logs once and say what happened; nothing of the job is changed.

    `sacct` is an answer already at hand for many jobs; without one the scheduler is asked where the log leaves a doubt.
    """
    began = time.perf_counter()
    if job.log is None:
        raise NotAJobError(f"{job.label} has no log, so there is nothing to read")
    index = index_logs(job.log, rank_files(job.dir))
    for part in earlier_parts(job.log):
        add_earlier(index, part)
    tries = attempts(index)
    if tries[-1].relaunched:
        keep_last(index, tries[-1])
    record = gather(job, index)
    said = _ask(job, index, sacct)
    overruled = slurm.apply(said, index)
    clock, wall_s = _clock(job, index, record, said, relaunched=tries[-1].relaunched)
    slow = interruptions(index, record, save_period(index))
    progress = project(index, record, slow, tries, wall_s, clock.now, on_disk(job, index))
    stall = stall_of(index, record, slow, progress, clock, tries[-1].seconds if len(tries) > 1 else _sum(progress))
    summary = index.facts.summary
    roles = assign(index, stall, progress.all_done or (summary is not None and summary.exit == 0), overruled)
    _confirm_cancel(roles, said)
    quote_without_secrets(roles, job.log)
    status = status_of(index, progress, roles, clock, stall is not None, said)
    shape = pattern_of(record.step, record.seconds, slow.any)
    speed = speed_of(f"job {job.id}", index, record, slow, shape)
    compared = compare(speed, reference) if reference else None
    shape = with_reference(shape, compared) if compared else shape
    degradation(roles, shape, index)
    nodes = said.nodes or len(index.facts.hosts) or None
    bad = status in ("failed", "cancelled", "hanging", "unknown-death")
    gpus = gpu_count(index, nodes, said.gpus)
    full_speed = shape.level_s if shape.name in ("constant-drop", "phased", "gradual") else None
    spent = budget(index, record, slow, progress, stall is not None, bad, gpus, full_speed, clock.ended)
    phase = phase_of(index, progress)
    return Triage(
        job, status, roles, progress, shape, phase, summary_of(status, roles, progress, shape),
        next_steps(status, roles, said, index), index, said, spent, tries, speed, record, compared,
        time.perf_counter() - began,
    )  # fmt: skip


def _sum(progress: Progress) -> float:
    return progress.training_s or 0.0


def _ask(job: Job, index: LogIndex, answer: Answer | None) -> Accounting:
    summary = index.facts.summary
    if answer is None:
        if summary is not None and summary.exit == 0:
            return Accounting(why_unknown="not asked: the log says how it ended")
        answer = slurm.ask([job.id])
    return slurm.accounting_of(job.id, answer, index)


def _clock(
    job: Job, index: LogIndex, record: StepRecord, said: Accounting, relaunched: bool
) -> tuple[Clock, float | None]:
    """The run's time, and the wall time of all its attempts (None where the earlier ones' is not known)."""
    live = is_live(job.state) or said.live
    now = time.time() if live else None
    events = journal.read(job.events).items if job.events else []
    dated = [(e.get("kind"), e["t"]) for e in events if isinstance(e.get("t"), (int, float))]
    stops = [float(t) for kind, t in dated if kind in ("first-failure", "stop")]
    over = [float(t) for kind, t in dated if kind == "run-end"]
    ended = None if live else over[-1] if over else said.end
    summary, begun = index.facts.summary, said.start or record.begin
    if summary is not None and summary.wall_s is not None:
        elapsed: float | None = float(summary.wall_s)
    elif said.elapsed_s is not None:
        elapsed = said.elapsed_s
    elif begun is not None and (now or ended) is not None:
        elapsed = (now or ended or begun) - begun
    else:
        # A log cut before its summary may still have the end of every stage.
        train = [s.seconds for s in index.facts.stages if s.name == "Training" and s.seconds is not None]
        setup = sum(s.seconds or 0 for s in index.facts.stages if s.what == "END" and s.name != "Training")
        elapsed = float(setup + train[-1]) if train else None
    return Clock(
        live, now, min(stops) if stops else ended, ended, elapsed
    ), said.total_elapsed_s if relaunched else elapsed


def _confirm_cancel(roles: Roles, said: Accounting) -> None:
    """The scheduler's word on a cancel removes the doubt that the log leaves."""
    if said.state != "CANCELLED":
        return
    for at, finding in enumerate(roles.findings):
        if finding.id == "cancelled":
            roles.findings[at] = replace(finding, why=said.says, proves_not="why it was cancelled")
