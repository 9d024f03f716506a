"""A Chrome trace (JSON, gzip or not) in pieces: what comes before and after its events, and the events themselves.

Such a file may have hundreds of megabytes, and as Python objects ten times that. So the array of events is cut into
pieces of whole events by numpy, and only one piece is decoded at a time.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from trackwalker.errors import EvidenceError
from trackwalker.perf.formats.model import Gap, Int64
from trackwalker.perf.formats.wire import Bytes, Source

Event = dict[str, Any]
_JSON = re.compile(rb'\s*(\{\s*"|\[\s*\{)')  # an xplane file may begin with a byte that JSON reads as a line's end
_BARE = re.compile(rb"\s*\[")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_TIMES = re.compile(rb'"ts"\s*:\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')
_DAY_US = 86_400e6
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_BETWEEN = b" \t\r\n,"
_PIECE = 4 << 20  # bytes decoded at a time
_EDGE = 1 << 20  # bytes at each end that tell when the trace was taken
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = 0x22, 0x5C, (0x7B, 0x5B), (0x7D, 0x5D)


def columns_of(values: array[int], names: tuple[str, ...]) -> dict[str, Int64]:
    """Rows of numbers, one after the other, as columns."""
    table = np.frombuffer(values, np.int64).reshape(-1, len(names)) if len(values) else np.zeros((0, len(names)), int)
    return {name: table[:, i].copy() for i, name in enumerate(names)}


def looks_like_json(source: Source) -> bool:
    """Whether a file's first bytes are those of a Chrome trace."""
    return _JSON.match(source.view[:4096]) is not None


class ChromeJson:
    """One file; `head` is known at once, `tail` when the events have been read."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name = source, name
        self.gaps = list(source.gaps)
        bare = _BARE.match(source.view)
        found = bare or _EVENTS.search(source.view)
        if found is None:
            raise EvidenceError(f"{name}: JSON, but no trace: it has no traceEvents")
        self._begin, self._wrapped = found.end(), bare is None
        self.head = {} if bare else _object(bytes(source.view[: found.start()]).rstrip(_BETWEEN) + b"}")
        self.tail: dict[str, Any] = {}
        self.events = 0

    @property
    def base_ns(self) -> int | None:
        """What the file says its times count from; None when it does not."""
        told = self.head.get("baseTimeNanoseconds")
        if told is None:  # some versions write it at the end
            ends = _BASE.findall(self._source.view[-_EDGE:])
            told = int(ends[-1]) if ends else None
        return told if isinstance(told, int) else None

    def window_us(self) -> tuple[float, float] | None:
        """About when the first and the last event were, in the file's microseconds; only its ends are looked at."""
        view = self._source.view
        edges = view[self._begin : self._begin + _EDGE], view[max(self._begin, len(view) - _EDGE) :]
        times = [float(time) for edge in edges for time in _TIMES.findall(edge)]
        if not times:
            return None
        middle = sorted(times)[len(times) // 2]
        near = [time for time in times if abs(time - middle) < _DAY_US / 2]  # metadata may say 0
        return min(near), max(near)

    def begins_with(self, pattern: re.Pattern[bytes]) -> bool:
        """Whether the first events hold a text."""
        return pattern.search(self._source.view[self._begin : self._begin + _EDGE]) is not None

    def batches(self) -> Iterator[list[Event]]:
        """All whole events, some thousand at a time; what is broken is left out and becomes a gap."""
        data, at, size, broken = self._source.data, self._begin, _PIECE, 0
        closed = -1
        while at < len(data) and closed < 0:
            block = data[at : at + size]
            ends, closed = _ends(block)
            if not len(ends):
                if at + size >= len(data):
                    break
                size *= 2  # one event larger than a piece
                continue
            events, lost = _decode(block, ends)
            self.events, broken = self.events + len(events), broken + lost
            yield events
            self._source.release(at, at + int(ends[-1]))
            if closed < 0:
                at += int(ends[-1])
            size = _PIECE
        if broken:
            self.gaps.append(Gap(f"{broken} events", f"{self._name} has events that are no JSON"))
        if closed < 0:
            self._cut()
        elif self._wrapped:
            after = bytes(self._source.view[at + closed + 1 :]).strip(_BETWEEN)
            self.tail = _object(b"{" + after)
            if not after.endswith(b"}"):
                self._cut()

    def _cut(self) -> None:
        if not any(gap.what == "the end of the trace" for gap in self.gaps):
            why = f"{self._name} breaks off after {self.events} events"
            self.gaps.append(Gap("the end of the trace", why, "copy it again, or let the profiler finish writing"))


def _object(text: bytes) -> dict[str, Any]:
    try:
        made = json.loads(text.decode(errors="replace"), strict=False)
    except ValueError:
        return {}
    return made if isinstance(made, dict) else {}


def _ends(block: Bytes) -> tuple[Int64, int]:
    """Where the whole events of a block end, and where the array of events does (-1: not in this block).

    A block begins between two events, so depth and quotes can be counted from nothing.
    """
    quote = block == _QUOTE
    places = np.flatnonzero(quote)
    escaped = places[(places > 0) & (block[places - 1] == _BACKSLASH)]
    if len(escaped):
        plain = np.where(block != _BACKSLASH, np.arange(len(block)), -1)
        run = escaped - 1 - np.maximum.accumulate(plain)[escaped - 1]
        quote[escaped[run % 2 == 1]] = False  # two backslashes are one backslash, and the quote is real
    inside = np.cumsum(quote, dtype=np.uint8) & 1
    opens = (block == _OPEN[0]) | (block == _OPEN[1])
    closes = (block == _CLOSE[0]) | (block == _CLOSE[1])
    brackets = np.flatnonzero((opens | closes) & (inside == 0))
    depth = np.cumsum(np.where(opens[brackets], 1, -1))
    over = np.flatnonzero(depth < 0)
    until = int(over[0]) if len(over) else len(brackets)
    done = (depth[:until] == 0) & closes[brackets[:until]]
    return brackets[:until][done] + 1, int(brackets[until]) if len(over) else -1


def _decode(block: Bytes, ends: Int64) -> tuple[list[Event], int]:
    """The events up to the last end; where the whole is no JSON they are tried one by one."""
    try:
        made = orjson.loads(b"[" + block[: int(ends[-1])].tobytes().lstrip(_BETWEEN) + b"]")
        return [event for event in made if isinstance(event, dict)], 0
    except orjson.JSONDecodeError:
        starts = [0, *map(int, ends[:-1])]
        texts = [block[a:b].tobytes().strip(_BETWEEN) for a, b in zip(starts, map(int, ends), strict=True)]
        events = [_object(text) for text in texts]
        good = [event for event in events if event]
        return good, sum(1 for text in texts if text != b"{}") - len(good)
