"""The throughput timeline: steps, phases and marks as one small document, complete or as far as the log alone tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trackwalker.diagnose.story import Mark, StepPoint, Story
from trackwalker.diagnose.storyteller import steps_of
from trackwalker.diagnose.triage import Triage
from trackwalker.job.layout import Job
from trackwalker.record.timeline import timeline_of
from trackwalker.report.marks import words_of
from trackwalker.report.text import clip, one_line
from trackwalker.report.words import is_time
from trackwalker.telemetry.client import Telemetry

MOST_MARKS = 300


def told(story: Story, restarts: Sequence[Mark] = ()) -> dict[str, Any]:
    """The whole story of a diagnosed job."""
    marks = sorted((m for m in (*story.marks, *restarts) if is_time(m.time)), key=_weight)[:MOST_MARKS]
    return {
        "complete": True,
        **_steps(story.steps),
        "phases": [
            {
                "first": p.first_step,
                "last": p.last_step,
                "start": round(p.start, 3),
                "end": round(p.end, 3),
                "seconds": p.seconds,
                "slow": p.slow,
            }
            for p in story.phases[:200]
            if is_time(p.start) and is_time(p.end)
        ],
        "marks": [
            {
                "time": round(m.time, 3),
                "kind": m.kind,
                "label": clip(one_line(m.label) if m.kind == "restart" else words_of(m), 80),
                "host": clip(one_line(m.host or ""), 80),
            }
            for m in sorted(marks, key=lambda m: m.time)
        ],
        "start": story.start,
        "end": story.end,
    }


def early(job: Job, seen: Triage, telemetry: Telemetry | None) -> dict[str, Any]:
    """What can be drawn before the diagnosis: the steps, where their times are known."""
    start = telemetry.range()[0] if telemetry is not None else seen.record.clock.start
    timeline = timeline_of(seen.record.table, seen.record.facts, telemetry, start)
    return {"complete": False, **_steps(steps_of(timeline)), "phases": [], "marks": [], "start": start, "end": None}


def _weight(mark: Mark) -> tuple[bool, float]:
    """Where there are too many marks, checkpoints give way."""
    return mark.kind == "checkpoint", mark.time


def _steps(steps: Sequence[StepPoint]) -> dict[str, Any]:
    known = sorted((p for p in steps if is_time(p.time) and math.isfinite(p.seconds)), key=lambda p: p.time)
    # A chart wants each time once, and rising.
    unique = [p for i, p in enumerate(known) if i == 0 or p.time > known[i - 1].time]
    with_tgs = sum(p.tgs is not None for p in unique)
    return {
        "times": [round(p.time, 3) for p in unique],
        "step": [p.step for p in unique],
        "seconds": [float(f"{p.seconds:.5g}") for p in unique],
        "tgs": [float(f"{p.tgs:.5g}") if p.tgs is not None else None for p in unique] if with_tgs else None,
    }
