"""Which lines a page shows: around a number, around a search's hit, from a place on, before it, or the log's end."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

from trackwalker.errors import UsageError
from trackwalker.logs.scanning.window import Line, LineCounts, OpenLog, Wanted
from trackwalker.report.text import clip, one_line
from trackwalker.report.words import is_time, size
from trackwalker.web.logs.log_lines import rank_filter
from trackwalker.web.logs.log_search import Hits, Needle, count, search
from trackwalker.web.pages.render import job_url

LINES = 200
_BEFORE = 50  # of them stand above the line that was asked for
# What one request may take; what takes longer goes on from where it was, in the next one.
_COUNT_S, _SEARCH_S, _FILTER_S, _HITS_S = 1.0, 1.5, 1.0, 0.8


@dataclass(frozen=True)
class Ask:
    """What a visitor wants to see of a log; every link of the page is one of these."""

    job: str
    file: str = ""
    rank: int | None = None
    line: int | None = None
    at: int | None = None  # a byte
    q: str = ""
    go: str = ""  # "next" and "prev" search from `at`, "later" and "earlier" show what lies after or before it
    part: int = 0
    follow: bool = False
    fold: bool = False  # whether lines that say the same are folded
    long: bool = False  # whether long lines stay on one line, to be scrolled
    t: float | None = None  # a moment of the run

    @property
    def url(self) -> str:
        """Its address."""
        words = [(name, value) for name in ("file", "q", "go") if (value := getattr(self, name))]
        numbers = [(name, value) for name in ("rank", "line", "at", "t") if (value := getattr(self, name)) is not None]
        flags = [(name, int(value)) for name in ("part", "follow", "fold", "long") if (value := getattr(self, name))]
        query = urlencode([*words, *numbers, *flags])
        anchor = f"#L{self.line}" if self.line is not None else "#log-end-of-it" if self.at_end else ""
        return job_url(self.job, "log") + (f"?{query}" if query else "") + anchor

    @property
    def at_end(self) -> bool:
        """Whether the end of the log is meant: no place, no moment and no search."""
        return self.line is None and self.at is None and self.t is None and not self.go

    def _same(self) -> Ask:
        """The same log in the same dress, at no place yet."""
        return Ask(self.job, self.file, self.rank, q=self.q, fold=self.fold, long=self.long)

    def to_line(self, line: int, part: int = 0) -> Ask:
        """The lines around one, in the same file."""
        return replace(self._same(), line=line, part=part)

    def to(self, go: str, at: int) -> Ask:
        """What lies after or before a place, or the next hit from there on."""
        return replace(self._same(), at=at, go=go)

    def to_end(self, follow: bool = False) -> Ask:
        """The end of the log."""
        return replace(self._same(), follow=follow)

    def dressed(self, fold: bool, long: bool) -> Ask:
        """The same place with lines folded or not, wrapped or not."""
        return replace(self, fold=fold, long=long)


@dataclass(frozen=True)
class Place:
    """The lines to show, where they lie, and what is to be said about them."""

    lines: list[Line]
    earlier: int  # the byte before which earlier lines lie
    later: int  # the byte from which on later lines come
    current: int | None = None  # where the line that was asked for begins
    hit: int | None = None  # where a search found its text
    says: str = ""
    again: Ask | None = None  # goes on with what took too long
    other: Ask | None = None  # a search that found nothing could begin elsewhere
    hits: Hits | None = None  # which of how many a search found


@lru_cache(maxsize=64)
def counts_of(path: Path) -> LineCounts:
    """The line counts of a log, kept between requests; they notice by themselves when it is another log."""
    return LineCounts()


def find(log: OpenLog, counts: LineCounts, ask: Ask, wanted: Wanted | None) -> Place:
    """The lines that are asked for."""
    counts.advance(log, time.monotonic() + _COUNT_S)
    if ask.q and ask.go in ("next", "prev"):
        return _searched(log, ask, wanted)
    if ask.line is not None:
        return _numbered(log, counts, ask, wanted)
    if ask.go == "earlier" and ask.at is not None:
        return before(log, ask, wanted, log.line_start(ask.at))
    if ask.at is not None:
        return after(log, ask, wanted, log.line_start(ask.at))
    return before(log, ask, wanted, log.size)


def keep_of(ask: Ask, own: int | None) -> Wanted | None:
    """Which lines of a file are a rank's; all of them in a file of its own."""
    if ask.rank is None or own == ask.rank:
        return None
    return rank_filter(ask.rank)


def after(log: OpenLog, ask: Ask, wanted: Wanted | None, at: int) -> Place:
    """The lines from a line's beginning on."""
    window = log.forward(at, LINES, wanted, time.monotonic() + _FILTER_S)
    again = ask.to("later", window.at) if window.stopped else None
    return Place(window.lines, at, window.at, says=_gap(log, ask, at, window.at) if again else "", again=again)


def before(log: OpenLog, ask: Ask, wanted: Wanted | None, at: int) -> Place:
    """The lines before a line's beginning."""
    window = log.backward(at, LINES, wanted, time.monotonic() + _FILTER_S)
    again = ask.to("earlier", window.at) if window.stopped else None
    return Place(window.lines, window.at, at, says=_gap(log, ask, window.at, at) if again else "", again=again)


def _around(log: OpenLog, ask: Ask, wanted: Wanted | None, start: int) -> Place:
    until = time.monotonic() + _FILTER_S
    above = log.backward(start, _BEFORE, wanted, until)
    below = log.forward(start, LINES - len(above.lines), wanted, until)
    return Place([*above.lines, *below.lines], above.at, below.at, current=start)


def _numbered(log: OpenLog, counts: LineCounts, ask: Ask, wanted: Wanted | None) -> Place:
    line = ask.line or 1
    start = counts.start_of(log, line)
    if start is not None:
        return _around(log, ask, wanted, start)
    end = before(log, ask, wanted, log.size)
    if not counts.whole(log):
        says = f"Line {line:,} is not reached yet: {size(counts.counted)} of {size(log.size)} are counted."
        return replace(end, says=says, again=ask)
    return replace(end, says=f"This log has {counts.lines(log) or 0:,} lines, so no line {line:,}: here is its end.")


def _searched(log: OpenLog, ask: Ask, wanted: Wanted | None) -> Place:
    back = ask.go == "prev"
    begin = ask.at if ask.at is not None else log.size if back else 0
    hit = search(log, Needle(ask.q), begin, back, _SEARCH_S, wanted)
    if hit.line is not None:
        hits = count(log, Needle(ask.q), hit.at, _HITS_S, wanted)
        return replace(_around(log, ask, wanted, hit.line.start), hit=hit.at, hits=hits)
    here = (before if back else after)(log, ask, wanted, log.line_start(hit.at if hit.stopped else begin))
    shown = clip(one_line(ask.q), 60)
    if hit.stopped:
        share = 100 * (log.size - hit.at if back else hit.at) / max(log.size, 1)
        says = f"Still looking for “{shown}”: {share:.0f} % of {size(log.size)} so far."
        return replace(here, says=says, again=ask.to(ask.go, hit.at))
    where = "before this place" if back else "after this place"
    everywhere = begin <= 0 if not back else begin >= log.size
    says = f"“{shown}” does not occur {'in this log' if everywhere else where}{_of_rank(ask)}."
    other = None if everywhere else ask.to(ask.go, log.size if back else 0)
    return replace(here, says=says, other=other)


def _gap(log: OpenLog, ask: Ask, begin: int, end: int) -> str:
    return f"Looked from {size(begin)} to {size(end)} of {size(log.size)} for lines{_of_rank(ask)}."


def _of_rank(ask: Ask) -> str:
    return f" of task {ask.rank}" if ask.rank is not None else ""


def _moment(text: str) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not is_time(value):
        raise UsageError(f"t is a moment in epoch seconds, not '{clip(one_line(text), 40)}'")
    return value


def ask_from(job: str, given: dict[str, str]) -> Ask:
    """A query string as an ask; what cannot be meant is one clear error."""

    def number(name: str) -> int | None:
        text = given.get(name, "").strip().replace(",", "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise UsageError(f"{name} is a number, not '{clip(one_line(text), 40)}'")
        return int(text)

    go = given.get("go", "")
    return Ask(
        job=job,
        file=given.get("file", "")[:1024],
        rank=number("rank"),
        line=number("line"),
        at=number("at"),
        q=given.get("q", "")[:200],
        go=go if go in ("next", "prev", "later", "earlier") else "",
        part=number("part") or 0,
        follow=given.get("follow", "") in ("1", "true", "on"),
        fold=given.get("fold", "") in ("1", "true", "on"),
        long=given.get("long", "") in ("1", "true", "on"),
        t=_moment(given.get("t", "")),
    )
