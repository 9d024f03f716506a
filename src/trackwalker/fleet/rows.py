"""One line of the jobs table: the few facts that tell jobs apart, small enough to be kept for thousands of jobs."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Verdict, Window
from trackwalker.job.causes import cause_name
from trackwalker.job.layout import Job
from trackwalker.launch.job_state import Standing
from trackwalker.record.goodput import Goodput
from trackwalker.record.status import ENDED_BADLY
from trackwalker.report import words
from trackwalker.report.story.cost import LOSSES
from trackwalker.report.text import clip, one_line
from trackwalker.stats.medians import median

Group = Literal["trouble", "running", "waiting", "finished", "cancelled", "reading"]
Tone = Literal["bad", "warn", "good", "run", "unknown", "idle", ""]

POINTS = 48  # of a sparkline
_FINEST = 90  # steps of a packed sparkline; a picture of it is 20 pixels high
_SURE_STEPS, _SURE_S = 10, 60.0  # a run that goes on is called slower after so much of it: two slow steps are a hiccup
_MOST_HOSTS = 20_000
_TONES: dict[str, tuple[Group, Tone]] = {
    "completed": ("finished", "good"),
    "soft-success": ("finished", "good"),
    "completed-short": ("trouble", "warn"),
    "running": ("running", "run"),
    "initialising": ("running", "run"),
    "failed": ("trouble", "bad"),
    "hanging": ("trouble", "bad"),
    "unknown-death": ("trouble", "bad"),
    "indeterminate": ("trouble", "unknown"),
    "cancelled": ("cancelled", ""),
    "waiting": ("waiting", "idle"),
    "pending": ("waiting", "idle"),
}
_OPEN = frozenset({"reading", "running", "initialising", "hanging", "waiting", "pending", "indeterminate"})
TROUBLED: tuple[Tone, ...] = ("bad", "warn")  # tones of a badge
_OUTCOMES: dict[str, Tone] = {
    "incident": "bad",
    "expected": "run",
    "healthy": "good",
    "insufficient-evidence": "unknown",
}
_UNREADABLE = "not readable"
_SLOWDOWN = "tgs-degradation"  # the class of a run that lost speed
_BY_ORDER = ("user-cancel", "preempted", "walltime")
_SLOWER = ("constant-drop", "phased", "gradual", "slow-from-start")


@dataclass(frozen=True, slots=True)
class JobRow:
    """What the table shows of one job; what is not known is None and shown as such, never as zero."""

    id: str
    name: str
    model: str = ""
    status: str = "reading"
    group: Group = "reading"
    tone: Tone = "idle"
    nodes: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    tgs: float | None = None
    step_s: float | None = None
    levels: str = ""  # throughput over the run, packed; `spark` reads it
    goodput: float | None = None
    start_up: float | None = None  # share of the wall time before training, of a run that hardly trained
    badge: str = ""  # the verdict in two words
    badge_tone: Tone = ""
    badge_from: Literal["", "verdict", "log"] = ""
    hosts: tuple[str, ...] = ()  # culprits of a verdict; without one, the host that the log names
    says: str = ""  # one sentence
    changed: float | None = None  # when its log was last written
    recorded: bool = False
    cause: str = ""  # id of the first root cause, or of the class that the log names
    outcome: str = ""  # of the verdict
    started: float | None = None  # by the run's own clock, never a file's
    ended: float | None = None
    gpus: int | None = None
    gpu_hours: float | None = None  # held
    lost_gpu_hours: float | None = None  # to slowdown, stalls and work that was thrown away
    burning: float | None = None  # GPUs that bring nothing right now
    ran_on: tuple[str, ...] = ()  # machines
    onset: float | None = None  # when the first root cause began
    confidence: float | None = None  # in it

    @property
    def spark(self) -> tuple[float | None, ...]:
        """Throughput over the run, the best of it 1; None where nothing is known."""
        return unpacked(self.levels)

    @property
    def troubled(self) -> bool:
        """Whether something is or was wrong with it, whoever says so; its cause need not be known."""
        return self.badge_tone in TROUBLED

    @property
    def groups(self) -> frozenset[str]:
        """Every tab that shows it: a cancelled job that was slow before is both."""
        return frozenset((self.group, _TONES.get(self.status, (self.group, ""))[0]))

    @property
    def when(self) -> float:
        """What lists are ordered by: when it began, or where nobody says, when its log was last written."""
        return self.started if self.started is not None else self.changed or 0.0

    @property
    def settled(self) -> bool:
        """Whether it is over: its row changes only when its files do."""
        return self.status not in _OPEN

    @property
    def pending(self) -> bool:
        """Whether its log has not been read yet."""
        return self.status == "reading"

    @property
    def readable(self) -> bool:
        """Whether its log could be read."""
        return self.status != _UNREADABLE

    @property
    def text(self) -> str:
        """What a search looks into, in small letters."""
        return " ".join((self.id, self.name, self.model, self.status, self.badge, self.says, *self.hosts)).lower()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        held = asdict(self)
        del held["levels"]
        return {**held, "spark": self.spark}

    @classmethod
    def of_columns(cls, held: dict[str, Any]) -> JobRow:
        """From the columns of the store; raises TypeError or KeyError on anything else."""
        known = {f.name: held[f.name] for f in fields(cls)}
        return cls(**{**known, "hosts": tuple(held["hosts"] or ()), "ran_on": tuple(held["ran_on"] or ())})


def unread(job: Job) -> JobRow:
    """A job before its log was looked at."""
    return JobRow(
        job.id, clip(one_line(job.name), 120), model_of(job, ""), changed=_changed(job), recorded=_recorded(job)
    )


def of_triage(found: Triage, verdict: Verdict | None) -> JobRow:
    """A job from its log, with the badge of its verdict where there is one."""
    facts, progress, record = found.index.facts, found.progress, found.record
    status = _status(found, verdict)
    group, tone = _TONES.get(status, ("trouble", "unknown"))
    budget = found.goodput.with_recorded(verdict.job.gpus if verdict is not None else None)
    started, ended = _span(found, verdict)
    row = replace(
        unread(found.job),
        model=model_of(found.job, facts.header.get("MODEL_NAME", "")),
        status=status,
        group=group,
        tone=tone,
        nodes=record.nodes,
        last_step=progress.last_step,
        total_steps=progress.total_steps,
        tgs=_finite(progress.tgs),
        step_s=_finite(progress.step_time_s),
        levels=packed(spark(record.steps.tgs, record.steps.seconds)),
        goodput=_finite(budget.goodput),
        start_up=budget.start_up if budget.hardly_trained else None,
        says=clip(one_line(found.summary), 300),
        started=started,
        ended=ended,
        gpus=budget.gpus,
        gpu_hours=_hours(budget.wall_s, budget.gpus),
        lost_gpu_hours=_lost(budget),
        burning=_burning(found, budget.gpus),
        ran_on=_machines(found),
    )
    row = _with_class(row, found)
    if verdict is not None:
        row = _with_verdict(row, verdict)
    elif not row.troubled and row.status in ENDED_BADLY:
        row = replace(row, badge=_unexplained(row), badge_tone="bad", badge_from="log")
    return replace(row, group="trouble") if row.troubled else row


def _status(found: Triage, verdict: Verdict | None) -> str:
    """As the job's own page says it: the verdict's word, unless that was said while a run that is over went on."""
    if verdict is None or (verdict.status in _OPEN and found.status not in _OPEN):
        return found.status
    return verdict.status


def _span(found: Triage, verdict: Verdict | None) -> tuple[float | None, float | None]:
    """When the run began and ended by its own clock, the scheduler's, or that of its metrics; never a file's."""
    record = found.record
    window = verdict.window if verdict is not None else Window()
    starts = (record.clock.start, record.accounting.start, record.table.begin, _moment(window.start))
    begun = next((t for t in starts if t), None)
    if record.clock.live:
        return begun, None
    ends = (record.clock.ended, record.accounting.end, record.table.last_end, _moment(window.end))
    ended = next((t for t in ends if t), None)
    wall = record.clock.wall_s
    if begun is not None and ended is None and wall is not None:
        ended = begun + wall
    if begun is None and ended is not None and wall is not None:
        begun = ended - wall
    return begun, ended


def _moment(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _machines(found: Triage) -> tuple[str, ...]:
    """The machines it ran on, each once."""
    record = found.record
    names = [place.node for place in record.run.ranks] if record.run is not None else record.hosts
    return tuple(dict.fromkeys(sys.intern(clip(one_line(name), 80)) for name in names[:_MOST_HOSTS]))


def _burning(found: Triage, gpus: int | None) -> float | None:
    """GPUs that bring nothing now: all of a run that hangs, the lost share of one that is slow; None: not known."""
    if not found.record.clock.live and found.status not in ("running", "hanging"):
        return 0.0
    if gpus is None:
        return None
    if found.status == "hanging":
        return float(gpus)
    lost = -(found.pattern.change or 0.0) if _is_slower(found) else 0.0
    return gpus * min(max(lost, 0.0), 1.0)


def _lost(budget: Goodput) -> float | None:
    """GPU-hours that brought nothing; None where only part of it could be known, and that part is nothing."""
    seconds = sum(budget.seconds(what) for what in LOSSES)
    return _hours(seconds, budget.gpus) if seconds or budget.lost_known else None


def _hours(seconds: float | None, gpus: int | None) -> float | None:
    return None if seconds is None or gpus is None else _finite(seconds * gpus / 3600.0)


def of_error(job: Job, says: str) -> JobRow:
    """A job that cannot be read, and why."""
    said = clip(one_line(says), 300)
    return replace(unread(job), status=_UNREADABLE, group="trouble", tone="unknown", says=said)


def of_standing(job: Job, seen: Standing) -> JobRow:
    """A job that has written nothing yet, as its scheduler sees it."""
    group, tone = _TONES.get(seen.state, ("waiting", "idle"))
    said = clip(one_line(" ".join(filter(None, (seen.meaning, seen.reason)))), 300)
    return replace(unread(job), status=one_line(seen.state), group=group, tone=tone, says=said)


def model_of(job: Job, said: str) -> str:
    """The model: as the log names it, else what the job's name says behind its launcher's prefix."""
    return clip(one_line(said or job.name.removeprefix("JAX-")), 80)


def spark(tgs: NDArray[np.float64], seconds: NDArray[np.float64]) -> tuple[float | None, ...]:
    """The run's throughput in a few points, the best of them 1; medians, so that a save is not a valley."""
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = tgs if np.isfinite(tgs).any() else 1.0 / seconds
    speed = np.where(np.isfinite(speed) & (speed > 0), speed, np.nan)
    if np.isfinite(speed).sum() < 2:
        return ()
    parts = np.array_split(speed, min(POINTS, len(speed)))
    levels = [median(p[np.isfinite(p)]) if np.isfinite(p).any() else None for p in parts]
    top = max(level for level in levels if level is not None)
    return tuple(None if level is None else round(level / top, 3) for level in levels)


def packed(points: tuple[float | None, ...]) -> str:
    """A sparkline as a character a point: a hundred thousand of them are kept in memory."""
    return "".join(" " if point is None else chr(33 + round(min(max(point, 0.0), 1.0) * _FINEST)) for point in points)


def unpacked(levels: str) -> tuple[float | None, ...]:
    """What `packed` was given; a foreign character is a gap."""
    return tuple(round((ord(c) - 33) / _FINEST, 3) if 33 <= ord(c) <= 33 + _FINEST else None for c in levels)


def _with_verdict(row: JobRow, verdict: Verdict) -> JobRow:
    """What the verdict concludes; trouble whose cause it does not know stays trouble, and what it cost was lost."""
    roots = verdict.roots
    said = cause_name(roots[0].cause) if roots else words.OUTCOMES[verdict.outcome].lower()
    tone = _OUTCOMES[verdict.outcome]
    lost = row.troubled or any(account.lost_s > 0 for account in verdict.accounts)
    dead = row.status in ENDED_BADLY and verdict.outcome != "expected"
    if not roots and (dead or (lost and verdict.outcome == "insufficient-evidence")):
        said, tone = _unexplained(row), "bad" if dead else "warn"
    hosts = tuple(clip(one_line(host), 80) for host in words.culprits(verdict)[:8])
    more = f" +{len(roots) - 1}" if len(roots) > 1 else ""
    return replace(
        row,
        badge=clip(one_line(said), 60) + more,
        badge_tone=tone,
        badge_from="verdict",
        cause=roots[0].cause if roots else "",
        outcome=verdict.outcome,
        onset=_moment(roots[0].onset.time) if roots and roots[0].onset else row.onset,
        confidence=_finite(roots[0].confidence) if roots else None,
        hosts=hosts,
        says=clip(one_line(verdict.summary), 300),
    )


def _unexplained(row: JobRow) -> str:
    return f"{row.badge or row.status}, cause unknown"


def _with_class(row: JobRow, found: Triage) -> JobRow:
    """What the log alone says: a failure's class, or by how much the run became slower."""
    primary, change = found.primary, found.pattern.change or 0.0
    # Who cancels a run often does so because it was slow: that says more than the cancel.
    ended_by_order = primary is not None and primary.cause in _BY_ORDER
    if _is_slower(found) and (primary is None or primary.id == _SLOWDOWN or ended_by_order):
        slow = f"slower {words.change(change)}"
        began = min((p.start for p in found.record.phases if p.slow and words.is_time(p.start)), default=None)
        return replace(row, badge=slow, badge_tone="warn", badge_from="log", onset=began)
    if primary is None or primary.id == _SLOWDOWN:
        return row
    host = (one_line(found.roles.first_host)[:80],) if found.roles.first_host and not ended_by_order else ()
    tone: Tone = "" if ended_by_order else "bad"
    name = clip(cause_name(primary.cause), 60)
    return replace(row, badge=name, badge_tone=tone, badge_from="log", hosts=host, cause=primary.cause or "")


def _is_slower(found: Triage) -> bool:
    """Whether the run lost speed; of one that goes on, only when that has lasted."""
    if found.pattern.name not in _SLOWER or (found.pattern.change or 0.0) >= 0:
        return False
    slow = [phase for phase in found.record.phases if phase.slow]
    if not found.record.clock.live or not slow:
        return True
    return any(p.steps >= _SURE_STEPS and p.steps * p.seconds >= _SURE_S for p in slow)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _recorded(job: Job) -> bool:
    try:
        return job.database is not None
    except OSError:
        return False


def _changed(job: Job) -> float | None:
    place = job.log or job.dir
    try:
        return place.stat().st_mtime if place is not None else None
    except OSError:
        return None
