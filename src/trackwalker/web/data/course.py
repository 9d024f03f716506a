"""The course of a run as tracks on one time axis: throughput, step time and its split, loss and what goes with it.

The browser only draws: which values lie outside a scale, where nothing happened and what the axis does not show is
decided here, by the geometry of the report, so that page and report tell the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.story import StepPoint
from trackwalker.job.causes import about
from trackwalker.record.phases import Phase
from trackwalker.record.read import Record
from trackwalker.report import words
from trackwalker.report.charts.plots import beyond, course_range, thin
from trackwalker.report.charts.throughput_timeline import value_range
from trackwalker.telemetry.client import Floats, Telemetry

MOST_POINTS = 2000
_LATE_S = 60.0  # a scraped value comes after its step
# What TensorBoard's scalars are called: key, title, metric. The loss of the log itself goes first.
SCALARS = (
    ("loss", "loss", "tb_learning_loss"),
    ("grad", "gradient norm", "tb_learning_grad_norm"),
    ("rate", "learning rate", "tb_learning_current_learning_rate"),
)


@dataclass(frozen=True)
class Track:
    """One chart of the course: lines over common times; None breaks a line."""

    key: str
    title: str
    unit: str
    times: Sequence[float]
    lines: Sequence[tuple[str, Sequence[float | None]]]
    range: tuple[float, float]
    note: str = ""
    stacked: bool = False
    query: str = ""
    steps: Sequence[int | None] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """For the browser."""
        return {
            "key": self.key,
            "title": self.title,
            "unit": self.unit,
            "times": [round(t, 3) for t in self.times],
            "lines": [{"name": name, "values": [_short(v) for v in values]} for name, values in self.lines],
            "range": [_short(edge) for edge in self.range],
            "note": self.note,
            "stacked": self.stacked,
            "query": self.query,
            "steps": list(self.steps),
        }


def tracks(
    steps: Sequence[StepPoint], phases: Sequence[Phase], silences: Sequence[tuple[float, float]], record: Record | None
) -> list[Track]:
    """What the log and the journals tell, by step; lines are broken where nothing moved."""
    if not steps:
        return []
    found = []
    if any(p.tgs is not None for p in steps):
        found.append(_of_steps("tgs", "throughput", "tokens/s/device", steps, [p.tgs for p in steps], silences))
    seconds = [p.seconds for p in steps]
    lo_hi = value_range(list(steps), [p.seconds for p in phases], any(p.slow for p in phases))
    found.append(_of_steps("seconds", "step time", "s", steps, seconds, silences, lo_hi))
    if record is not None:
        found += [track for track in (_split(steps, record, silences, lo_hi), _loss(steps, record)) if track]
    return found


def scalars(telemetry: Telemetry, known: frozenset[str] = frozenset(), until: float | None = None) -> list[Track]:
    """What TensorBoard's scalars tell of learning: one series of each, its stored samples, nothing smoothed.

    A gauge goes on showing its last value when the run stands still: what comes after the last step is not drawn.
    """
    begin, end = telemetry.range()
    found = []
    for key, title, metric in SCALARS:
        if key in known or metric not in telemetry.metrics():
            continue
        series = telemetry.raw(metric, begin, end)
        if not series:
            continue
        labels, times, values = max(series, key=lambda s: (s[0].get("rank") == "0", len(s[1])))
        seen = times <= until + _LATE_S if until is not None else np.ones(len(times), np.bool_)
        if seen.sum() < 2:
            continue
        times, values = times[seen], values[seen]
        named = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()) if k in ("host", "rank"))
        found.append(_measured(key, title, times, values, f"{metric}{{{named}}}" if named else metric))
    return found


def first_of(verdict: Verdict | None, keys: Sequence[str]) -> tuple[str, str]:
    """Which track is shown first, and why: what the first root cause is about, else what it changed."""
    usual = keys[0] if keys else ""
    root = verdict.roots[0] if verdict is not None and verdict.roots else None
    if root is None:
        return usual, ""
    told = about(root.cause)
    name = words.cause_title(root.cause)
    if told is not None and "loss" in told.topics and "loss" in keys:
        return "loss", f"first, as the verdict is about it: {name[0].lower()}{name[1:]}"
    changed = {"tgs": "tgs", "step_time_s": "seconds", "step_time": "seconds"}.get(
        root.magnitude.of if root.magnitude else "", ""
    )
    if changed in keys and root.magnitude is not None:
        return changed, f"first, as the verdict is about it: {words.magnitude(root.magnitude)}"
    return usual, ""


def _of_steps(
    key: str,
    title: str,
    unit: str,
    steps: Sequence[StepPoint],
    values: Sequence[float | None],
    silences: Sequence[tuple[float, float]],
    lo_hi: tuple[float, float] | None = None,
) -> Track:
    known = [v for v in values if v is not None and math.isfinite(v)]
    low, high = lo_hi or course_range(known)
    times, numbers, broken = _broken([p.time for p in steps], [p.step for p in steps], values, silences)
    note = beyond(known, low, high, unit, "step")
    return Track(key, title, unit, times, [(title, broken)], (low, high), note, steps=numbers)


def _broken(
    times: Sequence[float],
    steps: Sequence[int],
    values: Sequence[float | None],
    silences: Sequence[tuple[float, float]],
) -> tuple[list[float], list[int | None], list[float | None]]:
    """The points with a hole in every silence: a line across it would claim steps that never were."""
    rows: list[tuple[float, int | None, float | None]] = list(zip(times, steps, values, strict=True))
    rows += [((a + b) / 2, None, None) for a, b in silences if times[0] < (a + b) / 2 < times[-1]]
    rows.sort(key=lambda row: row[0])
    return [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]


def _split(
    steps: Sequence[StepPoint], record: Record, silences: Sequence[tuple[float, float]], lo_hi: tuple[float, float]
) -> Track | None:
    """How much of each step was spent waiting for its batch, where the ranks say so: the slowest rank's wait counts."""
    waits: dict[int, float] = {}
    for done in record.told.done:
        if math.isfinite(done.data_wait_s):
            waits[done.step] = max(waits.get(done.step, 0.0), done.data_wait_s)
    if not waits:
        return None
    waited = [waits.get(p.step) for p in steps]
    rest = [None if w is None else max(p.seconds - w, 0.0) for p, w in zip(steps, waited, strict=True)]
    whole = [None if w is None or r is None else w + r for w, r in zip(waited, rest, strict=True)]
    high = lo_hi[1]
    times, numbers, lower = _broken([p.time for p in steps], [p.step for p in steps], waited, silences)
    _, _, upper = _broken([p.time for p in steps], [p.step for p in steps], whole, silences)
    over = sum(v is not None and v > high for v in whole)
    note = f"{over:,} step{'s are' if over > 1 else ' is'} longer than the scale holds." if over else ""
    lines = [("whole step", upper), ("waiting for its batch", lower)]
    return Track("split", "step time, split", "s", times, lines, (0.0, high), note, True, steps=numbers)


def _loss(steps: Sequence[StepPoint], record: Record) -> Track | None:
    """The loss of every step that tells one, at the time its step ended."""
    told = record.index.steps.losses or {d.step: d.loss for d in record.told.done if d.loss is not None}
    if len(told) < 2:
        return None
    numbers = np.array(sorted(told))
    values = np.array([told[int(n)] for n in numbers], float)
    order = np.argsort([p.step for p in steps], kind="stable")
    at = np.array([steps[i].step for i in order]), np.array([steps[i].time for i in order])
    inside = (numbers >= at[0][0]) & (numbers <= at[0][-1])
    times = np.interp(numbers[inside], *at)
    rising = np.flatnonzero(np.diff(times, prepend=-np.inf) > 0)
    if len(rising) < 2:
        return None
    return _measured("loss", "loss", times[rising], values[inside][rising], "", numbers[inside][rising].tolist())


def _measured(key: str, title: str, times: Floats, values: Floats, query: str, steps: Sequence[int] = ()) -> Track:
    """Samples as they are, thinned so that no peak is lost; what is no number is counted, not drawn."""
    good = np.isfinite(values)
    kept = thin(np.where(good, values, 0.0).tolist(), MOST_POINTS)
    known = [float(values[i]) for i in kept if good[i]]
    low, high = course_range(known, from_zero=key != "loss")
    notes = [beyond(known, low, high, "", "value")]
    if lost := int((~good).sum()):
        first = float(times[int(np.argmin(good))])
        notes.append(f"{lost:,} values are not a number, the first at {words.utc(first)} UTC.")
    return Track(
        key,
        title,
        "",
        [float(times[i]) for i in kept],
        [(title, [float(values[i]) if good[i] else None for i in kept])],
        (low, high),
        " ".join(n for n in notes if n),
        query=query,
        steps=[steps[i] for i in kept] if len(steps) else (),
    )


def _short(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
