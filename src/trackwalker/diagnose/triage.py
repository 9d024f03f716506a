"""Triage: what happened, from the log alone; what else the job left (journal, event file, sacct) sharpens it."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.compare.reference import Comparison, Speed, compare, speed_of, with_reference
from trackwalker.job.causes import cause_label
from trackwalker.job.dialects import by_name
from trackwalker.job.layout import Job
from trackwalker.job.scrub import scrubber_of
from trackwalker.logs.attempts import Attempt
from trackwalker.logs.failures.findings import Finding
from trackwalker.logs.failures.roles import UNCLASSIFIED, Roles
from trackwalker.logs.scanning.index import LogIndex
from trackwalker.record.accounting import Accounting
from trackwalker.record.goodput import Goodput, budget
from trackwalker.record.pattern import Pattern, pattern_of
from trackwalker.record.projection import Progress
from trackwalker.record.read import Answer, Record, read_record
from trackwalker.record.status import DIED, ENDED_BADLY

SCHEMA = "trackwalker.triage/1"


@dataclass
class Triage:
    """The answer, with the lines it rests on."""

    record: Record
    roles: Roles  # every failure class with its role
    pattern: Pattern
    phase: str
    summary: str
    next: list[str]
    goodput: Goodput
    speed: Speed
    compared: Comparison | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def job(self) -> Job:
        """Whose triage it is."""
        return self.record.job

    @property
    def status(self) -> str:
        """How the run stands, without a recording."""
        return self.record.status

    @property
    def progress(self) -> Progress:
        """How far it came."""
        return self.record.progress

    @property
    def index(self) -> LogIndex:
        """What the logs hold."""
        return self.record.index

    @property
    def accounting(self) -> Accounting:
        """What the scheduler says."""
        return self.record.accounting

    @property
    def attempts(self) -> list[Attempt]:
        """The goes at the run."""
        return self.record.attempts

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


def triage(job: Job, reference: Speed | None = None, sacct: Answer | None = None, every_rank: bool = False) -> Triage:
    """Read a job once and say what happened; nothing of the job is changed.

    `sacct` and `every_rank` are those of `read_record`.
    """
    began = time.perf_counter()
    record = read_record(job, sacct, every_rank)
    _quote_without_secrets(record.roles, record.index.path)
    index, said, progress = record.index, record.accounting, record.progress
    shape = pattern_of(record.timeline, record.masks, record.phases)
    speed = speed_of(f"job {job.id}", record, shape)
    compared = compare(speed, reference) if reference else None
    shape = with_reference(shape, compared) if compared else shape
    roles = degradation(record.roles, shape, index)
    bad = record.status in ENDED_BADLY | {"cancelled"}
    full_speed = shape.level_s if shape.name in ("constant-drop", "phased", "gradual") else None
    spent = budget(record, bad, record.gpus(), full_speed)
    return Triage(
        record, roles, shape, phase_of(index, progress), summary_of(record.status, roles, progress, shape),
        next_steps(record.status, roles, said, index, job.database is not None), spent, speed, compared,
        time.perf_counter() - began,
    )  # fmt: skip


def phase_of(index: LogIndex, progress: Progress) -> str:
    """Where in its life the run is or ended."""
    facts = index.facts
    if progress.last_step is not None:
        return "training" if not progress.all_done else "teardown"
    if facts.barrier_ranks:
        return "during start-up, before the first step"
    if facts.params_ranks:
        return "compile"
    begun = [s.name for s in facts.stages if s.what == "BEGIN"]
    ended = {s.name for s in facts.stages if s.what == "END"}
    open_stages = [name for name in begun if name not in ended]
    return open_stages[-1].lower() if open_stages else "unknown"


_QUOTED = 120
LONGER = "steps-longer"
_SLOW = ("constant-drop", "phased", "gradual", "slow-from-start")


def degradation(roles: Roles, shape: Pattern, index: LogIndex) -> Roles:
    """A run that slowed down says so even when it ended well (FC-25); behind a failure it is an aside."""
    steps = index.steps
    dialect = by_name(steps.dialect)
    if shape.name not in _SLOW or (dialect is not None and dialect.smoothed):  # its slides are those of its averages
        return roles
    at = int(steps.line[steps.step == shape.from_step][0]) if shape.from_step in steps.step else index.lines
    found = Finding(
        id=states().cause(LONGER), cause=states().cause(LONGER), role="contributing" if roles.primary else "primary",
        tier=7, rank=None, host=None, line=at, file=index.path.name, text="", count=1, ranks=(), why=shape.says,
        kind="time",
        fc="FC-25", proves_not="which host or link; the shape of the curve alone does not name a cause",
        next=("trackwalker diagnose JOB: the log shows that it slowed down, telemetry shows which host",),
    )  # fmt: skip
    return replace(roles, findings=[*roles.findings, found])


def next_steps(status: str, roles: Roles, said: Accounting, index: LogIndex, recorded: bool) -> list[str]:
    """What to do, the failure's own advice first, without what is already known."""
    primary = roles.primary
    if primary is not None and primary.next:
        steps = [s for s in primary.next if said.state == "unknown" or not s.startswith("ask the scheduler")]
        fraction = index.facts.mem_fraction
        asks = [s for s in steps if "memory fraction in force" in s]
        if asks and fraction is not None:
            name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
            steps = [s for s in steps if s not in asks]
            if fraction < 0.93:
                steps.insert(0, f"raise {name} first: the log says {fraction:g}, and .93 is safe")
            else:  # there is no first step to come after
                steps = [s.removeprefix("then ") for s in steps]
                held = f"it is {fraction:g}, so JAX already takes nearly all of the GPU's memory"
                steps.append(f"do not raise {name}: {held}")
        return steps
    if status == "soft-success":
        return ["do not resubmit: every step was completed; check that the last checkpoint was committed"]
    if status == "indeterminate" and recorded:
        return ["trackwalker diagnose JOB: its recording tells whether the run went on; the log alone cannot"]
    if status == "indeterminate":
        return ["ask the scheduler whether the job still runs: the log alone cannot tell a hang from a death"]
    if status == DIED:
        return ["ask the scheduler (sacct) and the kernel log of the nodes; the log stops without a reason"]
    if status == "completed-short":
        return ["find out why fewer steps were run than configured: data ended, or a limit was set"]
    return []


def summary_of(status: str, roles: Roles, progress: Progress, shape: Pattern) -> str:
    """One or two sentences."""
    parts = []
    primary = roles.primary
    at = f" at step {progress.last_step}" if progress.last_step is not None else ""
    of = f" of {progress.total_steps}" if progress.total_steps and at else ""
    if primary is None:
        parts.append(f"{status}{at}{of}: no failure is visible in the log")
    else:
        placed = primary.tier != 5  # a cancel or a time limit comes from nowhere in particular
        several = f" on {len(primary.ranks)} ranks, first" if len(primary.ranks) > 1 else ""
        where = f"{several} on rank {primary.rank}" if primary.rank is not None and placed else ""
        host = f" ({primary.host})" if primary.host and placed else ""
        name = cause_label(primary.cause)
        if primary.cause == UNCLASSIFIED:
            name = f"unclassified ({primary.kind}?)" if primary.kind else "unclassified"
            where = f", first on rank {primary.rank}" if primary.rank is not None else ""
            host = (f" / {primary.host}" if where else f", first on {primary.host}") if primary.host else ""
            where, host = where + host, f': "{primary.text[:_QUOTED]}"'
        parts.append(f"{status}{at}{of}: {name}{where}{host}" + (f"; {primary.why}" if primary.why else ""))
    mechanism = next((f for f in roles.findings if f.role == "mechanism"), None)
    if mechanism is not None:
        parts.append(f"ended by {cause_label(mechanism.cause)}")
    if shape.name not in ("constant", "too-short") and (primary is None or primary.id != states().cause(LONGER)):
        parts.append(f"Throughput: {shape.says}")
    if progress.attempts > 1:
        parts.append(f"attempt {progress.attempts}")
    if progress.disagreement:
        parts.append(progress.disagreement)
    return ". ".join(parts)


def _quote_without_secrets(roles: Roles, log: Path) -> None:
    """The lines that triage quotes."""
    if any(finding.text for finding in roles.findings):
        scrubber = scrubber_of(log)
        roles.findings[:] = [replace(found, text=scrubber.clean(found.text)) for found in roles.findings]
        roles.first_says = scrubber.clean(roles.first_says)
