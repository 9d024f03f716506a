"""When the lines of a log were written: by its step lines and the times that lines carry; how many come, and when."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.views.story import Story
from trackwalker.errors import EvidenceError
from trackwalker.logs.scanning.lines import clean
from trackwalker.logs.scanning.stamps import written_at
from trackwalker.record.timeline import SLACK_S
from trackwalker.telemetry.client import Floats
from trackwalker.web.logs.log_lines import level

Ints = npt.NDArray[np.int64]

_BINS = 160
_MOST_BYTES = 48 << 20  # of a log that is read for its errors; of a longer one only the number of lines is told
_CANDIDATE = re.compile(
    rb"[EFW]\d{4} |ERROR|CRITICAL|FATAL|Traceback|FAILED|Aborted|Segmentation|SIG[KSAB]|Error|Exception|error:|"
    rb"WARN|[Ww]arning:"
)
_STAMPS = 400  # lines looked at for a time of their own


@dataclass(frozen=True)
class LineTimes:
    """Line numbers and times that belong together, both rising."""

    lines: Floats
    times: Floats

    def time_of(self, lines: Floats) -> Floats:
        """When lines were written."""
        return np.interp(lines, self.lines, self.times)

    def line_at(self, time: float) -> int:
        """The line that was written at a time, or the last before it."""
        return max(1, int(np.interp(time, self.times, self.lines)))


def line_times(seen: Triage, story: Story | None = None, stamps: list[tuple[int, float]] | None = None) -> LineTimes:
    """Each step's line was written when its step ended; between two of them lines are spread evenly.

    `stamps` are lines that carry a time of their own: they tell where no step does, and are believed inside the run.
    """
    timeline, steps = seen.record.timeline, seen.record.index.steps
    pairs: list[tuple[float, float]] = []
    known = {p.step: p.time for p in story.steps} if story is not None else {}
    if timeline is not None:
        known = {**dict(zip(timeline.steps.tolist(), timeline.ends.tolist(), strict=True)), **known}
    for step, line in zip(steps.step.tolist(), steps.line.tolist(), strict=True):
        if math.isfinite(known.get(step, math.nan)):
            pairs.append((float(line), known[step]))
    begin = story.start if story is not None and story.start is not None else seen.record.clock.start
    end = story.end if story is not None and story.end is not None else None
    low, high = begin if begin is not None else -math.inf, end if end is not None else math.inf
    pairs += [(float(n), t) for n, t in stamps or [] if low - SLACK_S <= t <= high + SLACK_S]
    if begin is not None:
        pairs.append((1.0, begin))
    if end is not None and stamps is not None:
        pairs.append((float(max((n for n, _ in stamps), default=1)), end))
    if len(pairs) < 2:
        raise EvidenceError("no line of this log has a known time")
    pairs.sort()
    lines, at = np.unique([p[0] for p in pairs], return_index=True)
    return LineTimes(lines, np.maximum.accumulate(np.array([pairs[i][1] for i in at])))


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


def written(seen: Triage, story: Story | None) -> Written:
    """The times of all lines of a job's log; the log is read once for that."""
    log = seen.job.log
    if log is None:
        raise EvidenceError("the job has written no log")
    whole = log.stat().st_size <= _MOST_BYTES
    raw = log.read_bytes() if whole else b""
    ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == 10) if raw else np.zeros(0, np.int64)
    total = len(ends) if raw else int(seen.record.index.steps.line.max(initial=1))
    known = line_times(seen, story, _stamps(raw, ends) if raw else None)
    errors, warnings = _levels(raw, ends)
    note = "" if whole else "the log is long: its errors and warnings are not counted here"
    return Written(known.time_of(np.arange(1, max(total, 1) + 1, dtype=float)), errors, warnings, note)


def _levels(raw: bytes, ends: Ints) -> tuple[Ints, Ints]:
    """Which lines are errors and which warnings, as the log viewer calls them; lines counted from zero."""
    found: dict[str, list[int]] = {"error": [], "warning": [], "": []}
    at, last = 0, -1
    while (match := _CANDIDATE.search(raw, at)) is not None:
        begin = raw.rfind(b"\n", 0, match.start()) + 1
        stop = raw.find(b"\n", match.start())
        stop = len(raw) if stop < 0 else stop
        line = int(np.searchsorted(ends, begin, side="left"))
        if line != last and line < len(ends):
            found[level(raw[begin : min(stop, begin + 400)])].append(line)
        at, last = stop + 1, line
    return np.array(found["error"], np.int64), np.array(found["warning"], np.int64)


def _stamps(raw: bytes, ends: Ints) -> list[tuple[int, float]]:
    """The own times of some lines, the first and the last among them."""
    out = []
    count = len(ends)
    for i in np.unique(np.linspace(0, max(count - 1, 0), min(_STAMPS, count)).astype(np.int64)).tolist():
        begin = int(ends[i - 1]) + 1 if i else 0
        own = written_at(clean(raw[begin : min(int(ends[i]), begin + 400)]))
        if math.isfinite(own):
            out.append((i + 1, own))
    return out
