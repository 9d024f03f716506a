"""Step lines without a time stand between lines that have one: those tell when the steps were."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trackwalker.logs.scanning.stamps import written_at
from trackwalker.logs.scanning.steps import Steps
from trackwalker.record.timeline import SLACK_S, Floats, Timeline

_MOST_BYTES = 1 << 26  # of the log's front
_MOST_LINES = 20_000
_STAMPED = re.compile(rb"^.{0,100}?\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\n]{0,10}", re.M)


def put_on_the_clock(timeline: Timeline, steps: Steps, log: Path, start: float, end: float) -> Timeline:
    """A timeline reckoned from the job's start, moved later where lines before a step were written after it,
    as far as the lines after it allow.

    Containers, imports and the first communicators take minutes that no step line tells of.
    """
    lines = {int(s): int(n) for s, n in zip(steps.step, steps.line, strict=True)}
    known = np.array([i for i, s in enumerate(timeline.steps.tolist()) if s in lines], np.intp)
    places = np.array([lines[int(s)] for s in timeline.steps[known]])
    numbers, times = _stamps(log)
    inside = (times >= start - SLACK_S) & (times <= end + SLACK_S)
    # Times of another zone would lie outside; steps out of order are of several attempts.
    if len(known) < 2 or not len(times) or not inside.all() or (np.diff(places) <= 0).any():
        return timeline
    ends, behind = timeline.ends[known], np.searchsorted(places, numbers)
    before, after = behind < len(places), behind > 0
    at_least = float(np.max(times[before] - ends[behind[before]], initial=0.0))
    at_most = float(np.min(times[after] - ends[behind[after] - 1], initial=np.inf))
    if at_least <= 0.0 or at_least > min(at_most, end - float(ends[-1])) + SLACK_S:
        return timeline
    room = max(0.0, at_most - at_least) if np.isfinite(at_most) else 0.0
    return replace(timeline, ends=timeline.ends + at_least + min(0.5 * room, SLACK_S))


def _stamps(log: Path) -> tuple[NDArray[np.int64], Floats]:
    """Numbers and times of the lines that begin with a time."""
    with log.open("rb") as file:
        data = file.read(_MOST_BYTES)
    numbers, times, number, at = [], [], 1, 0
    for match in _STAMPED.finditer(data):
        number, at = number + data.count(b"\n", at, match.start()), match.start()
        numbers.append(number)
        times.append(written_at(match[0].decode("utf-8", "replace")))
        if len(numbers) >= _MOST_LINES:
            break
    return np.array(numbers, np.int64), np.array(times, float)
