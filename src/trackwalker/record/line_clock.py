"""Lines of a run's log for those who show or count them: when each was written, whose it is, what they have in common.

The record's own reading keeps no line; whoever needs all of them reads them here, and concludes nothing else from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from trackwalker.job.dialects import needles, read_step
from trackwalker.logs.scanning.lines import clean
from trackwalker.logs.scanning.stamps import written_at
from trackwalker.record.timeline import Timeline

# What differs between two lines that say the same: numbers, addresses, hexadecimal ids, paths' last parts with digits.
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b|[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?")
_LABEL = re.compile(r"^\s*0*(\d+): ")
_LONGEST = 400


class LineClock:
    """Follows a log from its beginning; lines without a time have that of what stood before them."""

    def __init__(self, timeline: Timeline | None) -> None:
        ends = [] if timeline is None else zip(timeline.steps.tolist(), timeline.ends.tolist(), strict=True)
        self._ends = {step: end for step, end in ends if math.isfinite(end)}
        self._needles = needles()
        self.now: float | None = None

    def at(self, raw: bytes) -> float | None:
        """The time of the next line; None where nothing so far had one."""
        own = written_at(clean(raw[:_LONGEST]))
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
