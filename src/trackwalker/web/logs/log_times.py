"""How many lines a log got when, and how many of them are errors and warnings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.views.story import Story
from trackwalker.record.line_clock import LineTimes, Stamps, line_times, stamps_in
from trackwalker.telemetry.client import Floats
from trackwalker.web.logs.log_lines import level

Ints = npt.NDArray[np.int64]

_BINS = 160
_MOST_BYTES = 48 << 20  # of a log that is read for its errors; of a longer one only the number of lines is told
_GLOG = re.compile(rb"[EFW]\d{4} ")
# Each is searched for by itself: that takes a tenth of a search for all of them as one pattern.
_WORDS = (
    *(b"ERROR", b"CRITICAL", b"FATAL", b"Traceback", b"FAILED", b"Aborted", b"Segmentation", b"SIG", b"Error"),
    *(b"Exception", b"error:", b"WARN", b"arning:"),
)
_STAMPS = 400  # lines whose own time is read


def times_of(seen: Triage, story: Story | None = None, stamps: Stamps | None = None) -> LineTimes:
    """When lines were written, by the steps of the story where there is one: its clock may be better than the log's."""
    timeline = seen.record.timeline
    ends = dict(zip(timeline.steps.tolist(), timeline.ends.tolist(), strict=True)) if timeline is not None else {}
    ends |= {p.step: p.time for p in story.steps} if story is not None else {}
    begin = story.start if story is not None and story.start is not None else seen.record.clock.start
    return line_times(seen.record.index.steps, ends, begin, story.end if story is not None else None, stamps)


@dataclass(frozen=True)
class Written:
    """When each line of a log was written, and which are errors and warnings; lines counted from zero."""

    times: Floats
    errors: Ints
    warnings: Ints
    note: str = ""

    def density(self, start: float | None, end: float | None) -> dict[str, Any]:
        """Lines in each of a few hundred stretches of a span, and how many of them are errors or warnings."""
        low = start if start is not None else float(self.times[0])
        high = end if end is not None else float(self.times[-1])
        edges = np.linspace(low, max(high, low + 1.0), _BINS + 1)
        return {
            "times": [round(float(t), 3) for t in edges],
            "lines": np.histogram(self.times, edges)[0].tolist(),
            "errors": np.histogram(self.times[self.errors], edges)[0].tolist(),
            "warnings": np.histogram(self.times[self.warnings], edges)[0].tolist(),
            "note": self.note,
        }


@dataclass(frozen=True)
class Lines:
    """What only a reading of the whole log tells of its lines, however they are put on the clock."""

    total: int
    stamps: Stamps | None
    errors: Ints
    warnings: Ints


def read_lines(log: Path) -> Lines | None:
    """The lines of a log; None of one that is too long to be read for this."""
    if log.stat().st_size > _MOST_BYTES:
        return None
    raw = log.read_bytes()
    ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == 10)
    return Lines(len(ends), stamps_in(raw, _STAMPS) if raw else None, *_levels(raw, ends))


def written(lines: Lines | None, seen: Triage, story: Story | None) -> Written:
    """The times of all lines of a job's log."""
    note = "" if lines else "the log is long: its errors and warnings are not counted here"
    none = np.zeros(0, np.int64)
    lines = lines or Lines(int(seen.record.index.steps.line.max(initial=1)), None, none, none)
    known = times_of(seen, story, lines.stamps)
    times = known.time_of(np.arange(1, max(lines.total, 1) + 1, dtype=float))
    return Written(times, lines.errors, lines.warnings, note)


def _levels(raw: bytes, ends: Ints) -> tuple[Ints, Ints]:
    """Which lines are errors and which warnings, as the log viewer calls them; lines counted from zero."""
    found: dict[str, list[int]] = {"error": [], "warning": [], "": []}
    places = [match.start() for match in _GLOG.finditer(raw)]
    for word in _WORDS:
        at = raw.find(word)
        while at >= 0:
            places.append(at)
            stop = raw.find(b"\n", at)
            at = raw.find(word, stop) if stop >= 0 else -1
    lines = np.unique(np.searchsorted(ends, np.array(places, np.int64)))
    for line in lines[lines < len(ends)].tolist():
        begin = int(ends[line - 1]) + 1 if line else 0
        found[level(raw[begin : min(int(ends[line]), begin + 400)])].append(line)
    return np.array(found["error"], np.int64), np.array(found["warning"], np.int64)
