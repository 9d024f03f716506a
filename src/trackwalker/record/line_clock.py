"""When the lines of a run's log were written; whose they are, and what they have in common.

A line was written when it says so itself, when the step ended that it tells of, or else between the lines around it.
By the same rule steps without a time are put between lines that have one.

The record's own reading keeps no line; whoever needs all of them reads them here, and concludes nothing else from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trackwalker.errors import EvidenceError
from trackwalker.job.dialects import needles, read_step
from trackwalker.logs.scanning.lines import clean
from trackwalker.logs.scanning.stamps import written_at
from trackwalker.logs.scanning.steps import Steps
from trackwalker.record.timeline import SLACK_S, Floats, Timeline

Ints = NDArray[np.int64]

# What differs between two lines that say the same: numbers, addresses, hexadecimal ids, paths' last parts with digits.
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b|[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?")
_LABEL = re.compile(r"^\s*0*(\d+): ")
_LONGEST = 400
_DATE = re.compile(rb"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
_FRONT = 1 << 26  # bytes of a log that are looked at to put its steps on the clock
_MANY = 20_000  # lines with a time that are read for that


def own_time(raw: bytes) -> float:
    """When a line says that it was written; nan where it does not."""
    return written_at(clean(raw[:_LONGEST]))


@dataclass(frozen=True)
class Stamps:
    """Lines that say when they were written, by their numbers; both rising where the log was written in order."""

    lines: Ints
    times: Floats


def stamps_in(data: bytes, most: int) -> Stamps:
    """The lines with a time of their own; of more than `most` so many, evenly, with the first and the last."""
    begins: list[int] = []
    at = 0
    while (match := _DATE.search(data, at)) is not None:
        begin = data.rfind(b"\n", at, match.start()) + 1 or at
        if match.start() - begin < _LONGEST:
            begins.append(begin)
        at = data.find(b"\n", match.start()) + 1
        if not at:
            break
    if len(begins) > most:
        begins = [begins[i] for i in np.linspace(0, len(begins) - 1, most).astype(int)]
    times = np.array([own_time(data[begin : begin + _LONGEST].partition(b"\n")[0]) for begin in begins], float)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    lines = np.searchsorted(ends, np.array(begins, np.int64)) + 1
    known = np.isfinite(times)
    return Stamps(lines[known], times[known])


@dataclass(frozen=True)
class LineTimes:
    """Line numbers and times that belong together, both rising; between two of them lines are spread evenly."""

    lines: Floats
    times: Floats

    def time_of(self, lines: Floats) -> Floats:
        """When lines were written."""
        return np.interp(lines, self.lines, self.times)

    def line_at(self, time: float) -> int:
        """The line that was written at a time, or the last before it."""
        return max(1, int(np.interp(time, self.times, self.lines)))


def line_times(
    steps: Steps, ends: Mapping[int, float], start: float | None, end: float | None, stamps: Stamps | None = None
) -> LineTimes:
    """By the ends of the steps, and by lines with a time of their own, which are believed inside the run."""
    told = zip(steps.line.tolist(), steps.step.tolist(), strict=True)
    pairs = [(line, ends[step]) for line, step in told if math.isfinite(ends.get(step, math.nan))]
    if stamps is not None:
        low = (start if start is not None else -math.inf) - SLACK_S
        high = (end if end is not None else math.inf) + SLACK_S
        own = zip(stamps.lines.tolist(), stamps.times.tolist(), strict=True)
        pairs += [(line, time) for line, time in own if low <= time <= high]
        if end is not None:
            pairs.append((int(stamps.lines.max(initial=1)), end))
    if start is not None:
        pairs.append((1, start))
    if len(pairs) < 2:
        raise EvidenceError("no line of this log has a known time")
    pairs.sort()
    lines, at = np.unique([float(line) for line, _ in pairs], return_index=True)
    return LineTimes(lines, np.maximum.accumulate(np.array([pairs[i][1] for i in at])))


def put_on_the_clock(timeline: Timeline, steps: Steps, log: Path, start: float, end: float) -> Timeline:
    """A timeline reckoned from the job's start, moved later where lines before a step were written after it,
    as far as the lines after it allow.

    Containers, imports and the first communicators take minutes that no step line tells of.
    """
    lines = {int(s): int(n) for s, n in zip(steps.step, steps.line, strict=True)}
    known = np.array([i for i, s in enumerate(timeline.steps.tolist()) if s in lines], np.intp)
    places = np.array([lines[int(s)] for s in timeline.steps[known]])
    with log.open("rb") as file:
        stamps = stamps_in(file.read(_FRONT), _MANY)
    inside = (stamps.times >= start - SLACK_S) & (stamps.times <= end + SLACK_S)
    # Times of another zone would lie outside; steps out of order are of several attempts.
    if len(known) < 2 or not len(stamps.times) or not inside.all() or (np.diff(places) <= 0).any():
        return timeline
    ends, behind = timeline.ends[known], np.searchsorted(places, stamps.lines)
    before, after = behind < len(places), behind > 0
    at_least = float(np.max(stamps.times[before] - ends[behind[before]], initial=0.0))
    at_most = float(np.min(stamps.times[after] - ends[behind[after] - 1], initial=np.inf))
    if at_least <= 0.0 or at_least > min(at_most, end - float(ends[-1])) + SLACK_S:
        return timeline
    room = max(0.0, at_most - at_least) if np.isfinite(at_most) else 0.0
    return replace(timeline, ends=timeline.ends + at_least + min(0.5 * room, SLACK_S))


class LineClock:
    """Follows a log from its beginning; lines without a time have that of what stood before them."""

    def __init__(self, timeline: Timeline | None) -> None:
        ends = [] if timeline is None else zip(timeline.steps.tolist(), timeline.ends.tolist(), strict=True)
        self._ends = {step: end for step, end in ends if math.isfinite(end)}
        self._needles = needles()
        self.now: float | None = None

    def at(self, raw: bytes) -> float | None:
        """The time of the next line; None where nothing so far had one."""
        own = own_time(raw)
        if math.isfinite(own):
            self.now = own
        elif self._ends and any(n in raw for n in self._needles):
            told = read_step(clean(raw))
            if told is not None and told.step is not None:
                self.now = self._ends.get(told.step, self.now)
        return self.now


def label_of(raw: bytes) -> int | None:
    """The rank that a merged log puts before a line."""
    match = _LABEL.match(raw[:16].decode("ascii", "replace"))
    return int(match[1]) if match is not None else None


def template_of(text: str) -> str:
    """A line without what changes from line to line."""
    return " ".join(_VARIES.sub("#", _LABEL.sub("", text[:_LONGEST])).split())


def last_lines(path: Path, most: int) -> tuple[bool, Iterator[tuple[int, bytes]]]:
    """The lines of the last `most` bytes with their numbers, and whether there are more before them, not counted."""
    cut = path.stat().st_size > most

    def lines() -> Iterator[tuple[int, bytes]]:
        with path.open("rb") as file:
            if cut:
                file.seek(-most, 2)
                file.readline()
            yield from enumerate(file, start=1)

    return cut, lines()
