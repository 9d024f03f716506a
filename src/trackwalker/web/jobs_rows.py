"""One line of the jobs table: the few facts that tell jobs apart, small enough to be kept for thousands of jobs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.cause_names import cause_name
from trackwalker.job.layout import Job
from trackwalker.launch.standing import Standing
from trackwalker.report import words
from trackwalker.report.plots import px
from trackwalker.report.text import clip, one_line

Group = Literal["trouble", "running", "waiting", "finished", "cancelled", "reading"]
Tone = Literal["bad", "warn", "good", "run", "unknown", "idle", ""]

POINTS = 48  # of a sparkline
SPARK_WIDTH, SPARK_HEIGHT = 96.0, 20.0
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
_OUTCOMES: dict[str, Tone] = {
    "incident": "bad",
    "expected": "run",
    "healthy": "good",
    "insufficient-evidence": "unknown",
}
_SLOWDOWN = "tgs-degradation"  # the class of a run that lost speed
_BY_ORDER = ("user-cancel", "preempted", "walltime")
_SLOWER = ("constant-drop", "phased", "gradual", "slow-from-start")


@dataclass(frozen=True)
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
    spark: tuple[float | None, ...] = ()  # throughput over the run, of 1
    goodput: float | None = None
    badge: str = ""  # the verdict in two words
    badge_tone: Tone = ""
    badge_from: Literal["", "verdict", "log"] = ""
    hosts: tuple[str, ...] = ()  # culprits of a saved verdict
    says: str = ""  # one sentence
    changed: float | None = None  # when its log was last written
    recorded: bool = False

    @property
    def pending(self) -> bool:
        """Whether its log has not been read yet."""
        return self.status == "reading"

    @property
    def text(self) -> str:
        """What a search looks into, in small letters."""
        return " ".join((self.id, self.name, self.model, self.status, self.badge, self.says, *self.hosts)).lower()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, held: dict[str, Any]) -> JobRow:
        """What `to_dict` gave; raises TypeError or KeyError on anything else."""
        return cls(**{**held, "spark": tuple(held["spark"]), "hosts": tuple(held["hosts"])})


def unread(job: Job) -> JobRow:
    """A job before its log was looked at."""
    return JobRow(
        job.id, clip(one_line(job.name), 120), model_of(job, ""), changed=_changed(job), recorded=_recorded(job)
    )


def of_triage(found: Triage, verdict: Verdict | None) -> JobRow:
    """A job from its log, with the badge of the verdict that was saved with it."""
    facts, progress = found.index.facts, found.progress
    status = verdict.status if verdict is not None else found.status  # as the job's own page says it
    group, tone = _TONES.get(status, ("trouble", "unknown"))
    row = replace(
        unread(found.job),
        model=model_of(found.job, facts.header.get("MODEL_NAME", "")),
        status=status,
        group=group,
        tone=tone,
        nodes=found.record.nodes,
        last_step=progress.last_step,
        total_steps=progress.total_steps,
        tgs=_finite(progress.tgs),
        step_s=_finite(progress.step_time_s),
        spark=spark(found.record.steps.tgs, found.record.steps.seconds),
        goodput=_finite(found.goodput.goodput),
        says=clip(one_line(found.summary), 300),
    )
    row = _with_verdict(row, verdict) if verdict is not None else _with_class(row, found)
    slow_or_worse = row.badge_tone in ("bad", "warn")
    return replace(row, group="trouble") if slow_or_worse else row


def of_error(job: Job, says: str) -> JobRow:
    """A job that cannot be read, and why."""
    said = clip(one_line(says), 300)
    return replace(unread(job), status="not readable", group="trouble", tone="unknown", says=said)


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
    levels = [float(np.median(p[np.isfinite(p)])) if np.isfinite(p).any() else None for p in parts]
    top = max(level for level in levels if level is not None)
    return tuple(None if level is None else round(level / top, 3) for level in levels)


def spark_path(points: tuple[float | None, ...]) -> str:
    """A sparkline as an SVG path from zero up: a small drop looks small."""
    return "".join("M" + "L".join(f"{x} {y}" for x, y in run) for run in _runs(points))


def spark_area(points: tuple[float | None, ...]) -> str:
    """The surface below the sparkline."""
    return "".join(
        f"M{run[0][0]} {SPARK_HEIGHT:g}L" + "L".join(f"{x} {y}" for x, y in run) + f"L{run[-1][0]} {SPARK_HEIGHT:g}Z"
        for run in _runs(points)
    )


def _runs(points: tuple[float | None, ...]) -> list[list[tuple[str, str]]]:
    """Stretches without a gap, in pixels."""
    step = SPARK_WIDTH / max(len(points) - 1, 1)
    runs: list[list[tuple[str, str]]] = [[]]
    for i, value in enumerate(points):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((px(i * step), px(1.5 + (SPARK_HEIGHT - 1.5) * (1.0 - value))))
    return [run for run in runs if run]


def _with_verdict(row: JobRow, verdict: Verdict) -> JobRow:
    roots = verdict.roots
    said = cause_name(roots[0].cause) if roots else words.OUTCOMES[verdict.outcome].lower()
    hosts = tuple(clip(one_line(host), 80) for host in words.culprits(verdict)[:8])
    more = f" +{len(roots) - 1}" if len(roots) > 1 else ""
    return replace(
        row,
        badge=clip(one_line(said), 60) + more,
        badge_tone=_OUTCOMES[verdict.outcome],
        badge_from="verdict",
        hosts=hosts,
        says=clip(one_line(verdict.summary), 300),
    )


def _with_class(row: JobRow, found: Triage) -> JobRow:
    """What the log alone says: a failure's class, or by how much the run became slower."""
    primary, shape = found.primary, found.pattern
    # Who cancels a run often does so because it was slow: that says more than the cancel.
    ended_by_order = primary is not None and primary.cause in _BY_ORDER
    if (
        shape.name in _SLOWER
        and (shape.change or 0.0) < 0
        and (primary is None or primary.id == _SLOWDOWN or ended_by_order)
    ):
        return replace(row, badge=f"slower {words.change(shape.change or 0.0)}", badge_tone="warn", badge_from="log")
    if primary is None:
        return row
    host = (one_line(found.roles.first_host)[:80],) if found.roles.first_host and not ended_by_order else ()
    tone: Tone = "" if ended_by_order else "bad"
    return replace(row, badge=clip(cause_name(primary.cause), 60), badge_tone=tone, badge_from="log", hosts=host)


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
