"""The time axis of a job page: steps, tracks, phases, silences and marks, complete or as far as the log alone tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.story import Mark, StepPoint, Story, steps_of
from trackwalker.job.layout import Job
from trackwalker.record.clock import from_utc
from trackwalker.record.phases import Phase
from trackwalker.record.read import Record
from trackwalker.record.timeline import timeline_of
from trackwalker.report import words
from trackwalker.report.charts.marks import words_of
from trackwalker.report.charts.plots import Scale
from trackwalker.report.charts.throughput_timeline import find_silences
from trackwalker.report.text import clip, one_line
from trackwalker.report.view import in_order
from trackwalker.report.words import is_time
from trackwalker.telemetry.client import Telemetry
from trackwalker.web.data.course import first_of, tracks

MOST_MARKS = 300
_MOST_PHASES = 200
_MOST_EVENTS = 300


def told(
    story: Story, restarts: Sequence[Mark] = (), seen: Triage | None = None, verdict: Verdict | None = None
) -> dict[str, Any]:
    """The whole story of a diagnosed job; of one that still runs, with the steps that came since its verdict."""
    own = [_moved(m, verdict) for m in story.marks]
    marks = sorted((m for m in (*own, *restarts) if is_time(m.time)), key=_weight)[:MOST_MARKS]
    phases = [p for p in story.phases[:_MOST_PHASES] if is_time(p.start) and is_time(p.end)]
    steps = _newest(story.steps, seen)
    ends = [story.start, story.end]
    if steps and steps[-1].time > (ends[1] or 0.0):
        ends[1] = steps[-1].time
    return {
        "complete": True,
        **_axis(steps, phases, seen.record if seen is not None else None, verdict, ends[0], ends[1]),
        "phases": _phases(phases),
        "marks": [
            {
                "time": round(m.time, 3),
                "kind": m.kind,
                "label": clip(one_line(m.label) if m.kind == "restart" else words_of(m), 80),
                "host": clip(one_line(m.host or ""), 80),
            }
            for m in sorted(marks, key=lambda m: m.time)
        ],
        "events": _events(seen.record) if seen is not None else [],
        "start": ends[0],
        "end": ends[1],
    }


def early(job: Job, seen: Triage, telemetry: Telemetry | None) -> dict[str, Any]:
    """What can be drawn before the diagnosis: the steps, where their times are known."""
    start = telemetry.range()[0] if telemetry is not None else seen.record.clock.start
    timeline = timeline_of(seen.record.table, seen.record.facts, telemetry, start)
    return {
        "complete": False,
        **_axis(steps_of(timeline), [], seen.record, None, start, None),
        "phases": [],
        "marks": [],
        "events": _events(seen.record),
        "start": start,
        "end": None,
    }


def _moved(mark: Mark, verdict: Verdict | None) -> Mark:
    """An onset where the words of the page have it."""
    if mark.kind != "onset" or verdict is None:
        return mark
    roots = [c for c in in_order(verdict).roots if c.cause == mark.label and c.onset is not None and c.onset.time]
    times = [from_utc(c.onset.time.rstrip("Z")) for c in roots if c.onset is not None and c.onset.time]
    return replace(mark, time=min(times, key=lambda t: abs(t - mark.time))) if times else mark


def _newest(steps: Sequence[StepPoint], seen: Triage | None) -> Sequence[StepPoint]:
    """The story's steps, and those that were done after it was told."""
    if seen is None or not steps:
        return steps
    last = max(p.step for p in steps)
    later = [p for p in steps_of(seen.record.timeline) if p.step > last and p.time > steps[-1].time]
    return (*steps, *later)


def _axis(
    steps: Sequence[StepPoint],
    phases: Sequence[Phase],
    record: Record | None,
    verdict: Verdict | None,
    start: float | None,
    end: float | None,
) -> dict[str, Any]:
    known = sorted((p for p in steps if is_time(p.time) and math.isfinite(p.seconds)), key=lambda p: p.time)
    # A chart wants each time once, and rising.
    unique = [p for i, p in enumerate(known) if i == 0 or p.time > known[i - 1].time]
    silences = _silences(unique, start, end)
    made = tracks(unique, phases, silences, record)
    first, why = first_of(verdict, [track.key for track in made])
    with_tgs = sum(p.tgs is not None for p in unique)
    return {
        "times": [round(p.time, 3) for p in unique],
        "step": [p.step for p in unique],
        "seconds": [float(f"{p.seconds:.5g}") for p in unique],
        "tgs": [float(f"{p.tgs:.5g}") if p.tgs is not None else None for p in unique] if with_tgs else None,
        "tracks": [track.to_dict() for track in sorted(made, key=lambda track: track.key != first)],
        "why": why,
        "silences": [
            {"start": round(a, 3), "end": round(b, 3), "label": f"no step completed for {words.duration(b - a)}"}
            for a, b in silences
        ],
    }


def _silences(steps: list[StepPoint], start: float | None, end: float | None) -> list[tuple[float, float]]:
    """Where nothing moved between the first step and the end of the run."""
    if len(steps) < 2:
        return []
    low = min(steps[0].time - steps[0].seconds, start if start is not None else math.inf)
    high = max(steps[-1].time, end if end is not None else -math.inf)
    return [span for span in find_silences(steps, Scale(low, high, 0.0, 1.0)) if span[1] > steps[0].time]


def _phases(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    """The phases with what a reader wants to know of each; a slow one against the first that was not."""
    usual = next((p.seconds for p in phases if not p.slow), None)
    return [
        {
            "first": p.first_step,
            "last": p.last_step,
            "start": round(p.start, 3),
            "end": round(p.end, 3),
            "seconds": p.seconds,
            "slow": p.slow,
            "label": _named(p, usual),
        }
        for p in phases
    ]


def _named(phase: Phase, usual: float | None) -> str:
    took = f"{words.seconds(phase.seconds)} a step"
    more = f" ({words.change(phase.seconds / usual - 1)})" if phase.slow and usual else ""
    return f"slow: {took}{more}" if phase.slow else took


def _events(record: Record) -> list[dict[str, Any]]:
    """What the journal of the run tells, small enough for a strip."""
    timed = [e for e in record.events if isinstance(e.get("t"), int | float) and is_time(e["t"])]
    rows = sorted(timed, key=lambda e: float(e["t"]))
    return [
        {
            "time": round(float(e["t"]), 3),
            "kind": clip(one_line(str(e.get("kind", ""))), 60),
            "stage": clip(one_line(str(e.get("stage") or "")), 60),
            "host": clip(one_line(str(e.get("host") or "")), 80),
        }
        for e in rows[-_MOST_EVENTS:]
    ]


def _weight(mark: Mark) -> tuple[bool, float]:
    """Where there are too many marks, checkpoints give way."""
    return mark.kind == "checkpoint", mark.time
