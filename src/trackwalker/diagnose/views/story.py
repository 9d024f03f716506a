"""The pictures behind a verdict: what a report draws, reduced to what a page can hold (`tell` makes it of a case)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.verdict import Cause
from trackwalker.record.clock import from_utc
from trackwalker.record.phases import Phase
from trackwalker.record.timeline import Timeline
from trackwalker.telemetry.coverage import scrape_interval


@dataclass(frozen=True)
class StepPoint:
    """One completed step of the job (the slowest rank decides its time)."""

    step: int
    time: float  # seconds since the epoch, when the step ended
    seconds: float
    tgs: float | None = None


@dataclass(frozen=True)
class Mark:
    """Something that happened at a moment: a save, an exit, the onset of a cause."""

    time: float
    kind: Literal["onset", "checkpoint", "exit", "cancel", "restart", "end"]
    label: str
    host: str | None = None


@dataclass(frozen=True)
class Lane:
    """One host over time: its deciding metric, when it was seen, and whether it is accused."""

    host: str
    accused: bool
    times: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()  # None where nothing was recorded: a gap is drawn as a gap


@dataclass(frozen=True)
class Story:
    """Throughput timeline and host lanes of one job."""

    steps: tuple[StepPoint, ...] = ()
    phases: tuple[Phase, ...] = ()
    marks: tuple[Mark, ...] = ()
    lanes: tuple[Lane, ...] = ()
    lane_metric: str = ""  # what the lanes show, in words with its unit
    lane_query: str = field(default="", kw_only=True)  # what gives the numbers back
    start: float | None = None
    end: float | None = None
    notes: tuple[str, ...] = field(default=())


_MOST_POINTS = 2000
_LANE_POINTS = 240
# What to draw per host when the leading playbook has no wish of its own: the first that was recorded.
_LANES = (
    ("hw_gpu_power_watts", "avg by (host) (hw_gpu_power_watts)", "GPU power, W (mean of the host's GPUs)"),
    ("hw_cpu_seconds_total", "sum by (host) (rate(hw_cpu_seconds_total[$rate]))", "CPU use, cores"),
    ("hw_procs_running", "avg by (host) (hw_procs_running)", "runnable tasks"),
)


def tell(case: Case, symptoms: Symptoms, causes: list[Cause], leading: list[Examination]) -> Story:
    """The story behind a verdict."""
    lanes, title, query = _lanes(case, causes, leading)
    return Story(
        steps=steps_of(case.timeline),
        phases=tuple(p for p in symptoms.phases if math.isfinite(p.start)),
        marks=tuple(sorted(_marks(case, causes), key=lambda m: (m.time, m.kind))),
        lanes=lanes,
        lane_metric=title,
        lane_query=query,
        start=case.start,
        end=case.end,
        notes=tuple(case.all_damage),
    )


def steps_of(timeline: Timeline | None) -> tuple[StepPoint, ...]:
    """The steps as a page draws them: few enough, and no slow one lost."""
    if timeline is None:
        return ()
    points = []
    every = max(1, len(timeline) // _MOST_POINTS)
    for i in range(0, len(timeline), every):
        # Of each stretch the slowest step is drawn: a spike must not vanish in a thinned-out line.
        j = i + int(np.argmax(timeline.seconds[i : i + every]))
        end, tgs = float(timeline.ends[j]), float(timeline.tgs[j])
        if np.isfinite(end):
            seconds = float(timeline.seconds[j])
            points.append(StepPoint(int(timeline.steps[j]), end, seconds, tgs if np.isfinite(tgs) else None))
    return tuple(points)


def onsets(causes: list[Cause]) -> list[Mark]:
    """When the root causes began."""
    marks = []
    for cause in causes:
        if cause.role == "root" and cause.onset is not None and cause.onset.time is not None:
            host = cause.hosts[0] if len(cause.hosts) == 1 else None
            marks.append(Mark(from_utc(cause.onset.time.rstrip("Z")), "onset", cause.cause, host))
    return marks


def _marks(case: Case, causes: list[Cause]) -> list[Mark]:
    marks = onsets(causes)
    timeline = case.timeline
    if timeline is not None:
        for step in sorted(case.log.saves):
            at = np.flatnonzero(timeline.steps == step)
            if len(at) and np.isfinite(timeline.ends[at[0]]):
                marks.append(Mark(float(timeline.ends[at[0]]), "checkpoint", f"checkpoint {step}"))
    for event in case.events:
        if event.get("kind") == "rank-exit" and event["data"].get("exit"):
            marks.append(Mark(float(event["t"]), "exit", str(event["data"].get("cause", "exit")), event.get("host")))
    if case.log.cancel_time:
        marks.append(Mark(from_utc(case.log.cancel_time), "cancel", "cancelled"))
    if case.end is not None and not case.live:
        marks.append(Mark(case.end, "end", "end of the run"))
    return marks


def _lanes(case: Case, causes: list[Cause], leading: list[Examination]) -> tuple[tuple[Lane, ...], str, str]:
    telemetry = case.telemetry
    if telemetry is None or case.start is None or case.end is None:
        return (), "", ""
    wishes = [(p.lanes["metric"], p.lanes["query"], p.lanes["title"]) for p in (e.playbook for e in leading) if p.lanes]
    chosen = next((w for w in [*wishes, *_LANES] if w[0] in telemetry.metrics()), None)
    if chosen is None:
        return (), "", ""
    begin, last = telemetry.range()
    start, end = max(case.start, begin), min(case.end, last)
    step = max(1.0, (end - start) / _LANE_POINTS)
    if end - start < 2 * step:
        return (), "", ""
    query = case.topology.by_owner(chosen[1])
    if "$rate" in query:  # over a few samples: a rate of one is none, and would be drawn as a gap
        window = max(5, round(4 * step), math.ceil(3 * scrape_interval(telemetry, chosen[0])))
        query = query.replace("$rate", f"{window}s")
    matrix = telemetry.matrix(query, start, end, step)
    accused = {h for c in causes if c.role == "root" for h in c.hosts}
    lanes, own = [], {*case.hosts, *case.topology.machines}
    times, whole = tuple(matrix.times.tolist()), bool(np.isfinite(matrix.values).all())
    for labels, row in zip(matrix.labels, matrix.values, strict=True):
        host = labels.get("host", "")
        if case.hosts and host not in own:
            continue
        values = tuple(row.tolist() if whole else [v if math.isfinite(v) else None for v in row.tolist()])
        lanes.append(Lane(host, host in accused, times, values))
    return tuple(sorted(lanes, key=lambda lane: (not lane.accused, lane.host))), chosen[2], query
