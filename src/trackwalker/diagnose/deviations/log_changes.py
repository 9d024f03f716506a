"""Which kinds of log lines came, went, or changed their rate between a window and the rest of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.logs.formats.dialect import SUMMARY
from trackwalker.logs.scanning.lines import clean
from trackwalker.record.line_clock import LineClock, label_of, last_lines, template_of

_MOST_BYTES = 64 << 20  # of the end of a log: more would take minutes
_MOST_TEMPLATES = 50_000
_LEAST_SCORE = 3.0
_SUMMARY_LINES = 12  # at most: it ends at a line of '='
_STAGE_END = re.compile(r"== [\w ]{1,40} END\b")


@dataclass
class Kind:
    """Lines that differ in numbers only."""

    template: str
    example: str
    line: int  # of the example
    inside: int = 0
    outside: int = 0
    ranks: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class LogChange:
    """One kind of lines whose rate in the window is not what it was."""

    kind: Literal["new", "gone", "more", "fewer"]
    example: str
    line: int
    inside: int
    outside: int
    expected: float  # in the window, at the rate outside
    ranks: list[int]
    score: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class LogChanges:
    """What changed in a log, how much of it was read, and why nothing was, where that is so."""

    rows: list[LogChange]
    lines: int = 0
    says: str = ""


def log_changes(case: Case, window: Iterable[Span], reference: Iterable[Span], ranks: set[int] | None) -> LogChanges:
    """Count kinds of lines inside and outside of a window; `ranks` limits it to some."""
    path = case.job.log
    if path is None or not path.is_file():
        return LogChanges([], says="the job has no log")
    inside, outside = list(window), list(reference)
    clock = LineClock(case.timeline)
    known: dict[str, Kind] = {}
    closing = _Closing()
    count = timed = 0
    cut, lines = last_lines(path, _MOST_BYTES)
    for number, raw in lines:
        count += 1
        at = clock.at(raw)
        if at is None:
            continue
        timed += 1
        who = label_of(raw)
        if ranks is not None and who not in ranks:
            continue
        within = any(s.start <= at <= s.end for s in inside)
        if not within and not any(s.start <= at <= s.end for s in outside):
            continue
        text = clean(raw[:1000])
        template = template_of(text)
        if not template or template == "#" or closing.has(text):
            continue
        kind = known.get(template)
        if kind is None:
            if len(known) >= _MOST_TEMPLATES:
                continue
            kind = known[template] = Kind(template, text.strip(), number)
        kind.inside += within
        kind.outside += not within
        if within and not kind.ranks and kind.outside:
            kind.example, kind.line = text.strip(), number  # one from the window says more
        if within and who is not None:
            kind.ranks.add(who)
    if not timed:
        return LogChanges([], count, "no line of the log has a time, so it cannot be divided into windows")
    ratio = _seconds(inside) / max(1.0, _seconds(outside))
    rows = [row for kind in known.values() if (row := _judge(kind, ratio)) is not None]
    rows.sort(key=lambda r: (-r.score, r.line))
    part = f"only the last {_MOST_BYTES >> 20} MiB were read; line numbers count from there" if cut else ""
    return LogChanges(rows, count, part)


class _Closing:
    """The launcher's own words about the end: every run has them once, so that they are new in every last window."""

    def __init__(self) -> None:
        self._left = 0

    def has(self, text: str) -> bool:
        """Whether the next line is one of them."""
        bare = text.strip()
        if SUMMARY.match(bare):
            self._left = _SUMMARY_LINES
            return True
        if self._left:
            self._left = 0 if bare.strip("=") == "" else self._left - 1
            return True
        return _STAGE_END.match(bare) is not None


def _judge(kind: Kind, ratio: float) -> LogChange | None:
    """Whether a count is too far from what the rate outside makes one expect, by the noise of counting."""
    expected = kind.outside * ratio
    # Half a line is what nothing counts as: one new line is weak evidence, twenty are not.
    noise = math.sqrt(max(expected, 0.5) * (1.0 + ratio))
    score = abs(kind.inside - expected) / noise
    if score < _LEAST_SCORE and not (kind.outside == 0 and kind.inside > 0):
        return None
    if kind.outside == 0:
        sort: Literal["new", "gone", "more", "fewer"] = "new"
    elif kind.inside == 0:
        sort = "gone"
    else:
        sort = "more" if kind.inside > expected else "fewer"
    return LogChange(
        sort,
        kind.example,
        kind.line,
        kind.inside,
        kind.outside,
        round(expected, 1),
        sorted(kind.ranks),
        round(score, 1),
    )


def _seconds(spans: list[Span]) -> float:
    return sum(s.end - s.start for s in spans)
