"""One piece of a log: which of its lines hold a needle, and where its step lines are.

Which piece a line belongs to depends on the file alone, never on how far it had grown when it was read: a line belongs
to the piece it begins in. Only of a line longer than `LONGEST` each part belongs to the piece it lies in, so that an
error behind a megabyte of progress bar is found and no piece needs more than its own bytes and a margin.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from trackwalker.job.dialects import Dialect
from trackwalker.logs.scanning.needles import Ints, Needles
from trackwalker.logs.scanning.steptable import Floats, Letters, read_rows

CHUNK = 1 << 21  # fits the processor's cache, and is worth the calls it costs
LABEL = 8  # bytes at the start of a step line that tell its rank
# What begins with how far it is (a bar, `iter 10: loss`) begins with no label, or with the one in front of that.
_DRAWN = re.compile(rb"(\s*\d+: )?\s*(?:\d+%\||\{'|(?i:iter(?:ation)?|step|epoch|batch)\b[ =:#\[(]{0,3}\d)")
LONGEST = 4096  # what we match stands near the front of a line; the rest of a megabyte line is payload
MARGIN = 2 * LONGEST  # bytes read before and after a piece: enough to see a whole line of the greatest length
LONGEST_WHOLE = 1 << 20  # of a line that is wanted to its end: a thousand host names fill many kilobytes
_PART = 2048  # long lines are looked at in parts of this size, with as much before and after
FRONT = 256  # bytes of a long line's beginning that stand before each of its parts
_ABOVE = 200
_BLOCK = 1 << 18
_REGION = 1 << 20
_ROW = 1024  # bytes: step lines up to this length are copied as rows of one table
_FLOOD = 48  # of one needle in one region: a warning printed by every rank every step must not cost seconds
_PLENTY = 20_000


@dataclass(frozen=True)
class Label:
    """How the step lines of the rank that is read in full begin, and the words they hold."""

    start: bytes
    needle: bytes
    dialect: Dialect | None = None  # where all its lines may be read at once


@dataclass(frozen=True)
class FoundLine:
    """A line (or part of a long one) with a needle; its number is counted within the piece."""

    newlines: int
    raw: bytes
    needles: tuple[int, ...]
    above: bytes
    cut: bool  # the beginning of the line lies before the margin


@dataclass
class Found:
    """What one piece gave; `step_numbers` count the newlines of the piece before the line."""

    newlines: int = 0
    last_newline: int | None = None  # offset in the file
    lines: list[FoundLine] = field(default_factory=list)
    step_numbers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    steps: list[bytes] = field(default_factory=list)  # every rank's
    step_starts: list[bytes] = field(default_factory=list)
    step_text: bytes = b""  # or, searched with a label, that rank's: lines between newlines
    step_table: Floats | None = None  # and what they say, where they all have the usual form
    last_steps: dict[bytes, bytes] = field(default_factory=dict)  # line start (the label) -> last step line
    skipped: int = 0


class Buffers:
    """One thread's memory. The arithmetic goes block by block, so that it stays in the processor's cache."""

    def __init__(self) -> None:
        self.data = np.empty(CHUNK + 2 * MARGIN + _ROW, np.uint8)
        self._mask = np.empty(_BLOCK, np.bool_)
        self._bits = np.zeros(len(self.data) // 32 * 4 + 4, np.uint8)

    def read(self, fd: int, begin: int, end: int) -> int:
        """Fill the front with a part of the file; fewer bytes come when the file was cut meanwhile."""
        wanted, got = end - begin, 0
        while got < wanted and (more := os.preadv(fd, [self.data[got:wanted].data], begin + got)):
            got += more
        return got

    def newlines(self, size: int) -> Ints:
        """Where the lines end.

        Looked for as bits in words of 32 bytes, of which a line mostly fills several: to look at each byte's answer
        would take twice as long, most of it for jumps that the processor cannot foresee.
        """
        self._bits[size // 32 * 4 :] = 0
        for begin in range(0, size, _BLOCK):
            block = self.data[begin : min(begin + _BLOCK, size)]
            mask = self._mask[: len(block)]
            np.equal(block, 10, out=mask)
            bits = np.packbits(mask, bitorder="little")
            self._bits[begin // 8 : begin // 8 + len(bits)] = bits
        words = self._bits.view("<u4")
        at = (words != 0).nonzero()[0]
        words = words.take(at)
        found = []
        while len(at):
            lowest = words & (~words + 1)  # a power of two: which one is the exponent of the float
            found.append(at * 32 + ((lowest.astype(np.float32).view(np.int32) >> 23) - 127))
            words ^= lowest
            more = words.nonzero()[0]
            at, words = at[more], words[more]
        return found[0] if len(found) == 1 else np.sort(np.concatenate([np.zeros(0, np.int64), *found]))


class Chunk:
    """A piece with its margins in a thread's buffer."""

    def __init__(self, fd: int, number: int, size: int, buffers: Buffers) -> None:
        begin = number * CHUNK
        lead = min(begin, MARGIN)
        self._base = begin - lead
        self._first = lead
        got = buffers.read(fd, self._base, min(size, begin + CHUNK + MARGIN))
        self._last = max(lead, min(got, lead + CHUNK))
        buffers.data[got] = 10  # a last line without its newline counts as ended
        self._size = got + 1
        self._data = buffers.data[: self._size]
        self._spare = buffers.data  # with room beyond the end: labels are compared as words, step lines copied as rows
        self._ends = buffers.newlines(self._size)
        self._skipped = int(np.searchsorted(self._ends, self._first))
        # Before the first newline we see stands a line whose beginning we see only in the first piece.
        self._front = 0 if self._base == 0 else -MARGIN

    def search(self, needles: Needles, label: Label | None, last_steps: bool = False) -> Found:
        """Everything of the piece; with a label the step lines of that rank only, or of all ranks just the last."""
        inside = int(np.searchsorted(self._ends, self._last))
        found = Found(newlines=inside - self._skipped)
        if self._first >= self._last:
            return found
        if inside > self._skipped:
            found.last_newline = self._base + int(self._ends[inside - 1])
        places, texts, found.skipped = needles.text.find(self._data.data)
        if len(places):
            self._lines(places, texts, needles, found)
        if label:
            self._own_steps(label, found)
        else:
            find = needles.find_last_steps if last_steps else needles.find_steps
            self._all_steps(find(self._data.data), found)
        return found

    def _starts(self, index: Ints) -> Ints:
        """Where the lines begin that end with these newlines."""
        if not len(self._ends):
            return np.full(len(index), self._front)
        return np.where(index > 0, self._ends[np.maximum(index, 1) - 1] + 1, self._front)

    def _lines(self, places: Ints, texts: Ints, needles: Needles, found: Found) -> None:
        index = np.searchsorted(self._ends, places)
        starts = self._starts(index)
        ends = np.append(self._ends, self._size + MARGIN)[index]
        is_long = ends - starts > LONGEST
        parts = (self._base + places) // _PART * _PART - self._base
        owners = np.where(is_long, places, starts)
        mine = np.flatnonzero((owners >= self._first) & (owners < self._last))
        # A part of a long line may begin before the line does, and there a short line may begin: odd keys are parts.
        keys = np.where(is_long, 2 * np.maximum(parts, starts) + 1, 2 * starts)
        regions = (self._base + owners) // _REGION
        seen: dict[tuple[int, int], int] = {}
        lines: dict[int, tuple[int, set[int]]] = {}
        columns = (c[mine].tolist() for c in (texts, regions, keys))
        for at, text, region, key in zip(mine.tolist(), *columns, strict=True):
            for number in needles.text.numbers[text]:
                count = seen[number, region] = seen.get((number, region), 0) + 1
                if count > (_PLENTY if number in needles.plenty else _FLOOD):
                    found.skipped += 1
                    continue
                lines.setdefault(key, (at, set()))[1].add(number)
        for key, (at, numbers) in sorted(lines.items()):
            begin, end = int(starts[at]), int(ends[at])
            if is_long[at] and not needles.whole.isdisjoint(numbers) and begin >= 0:
                end = min(end, begin + LONGEST_WHOLE)
            elif is_long[at]:
                begin, end = max(begin, key // 2 - _PART, 0), min(end, key // 2 + 2 * _PART)
            above = self._data[max(0, begin - _ABOVE) : max(0, begin - 1)].tobytes().rpartition(b"\n")[2]
            newlines = max(int(index[at]) - self._skipped, 0)
            raw = self._data[begin:end].tobytes()
            if begin > starts[at] >= 0:  # whose it is and whether it is payload stands at the beginning of the line
                raw = self._data[starts[at] : min(starts[at] + FRONT, begin)].tobytes() + raw
            found.lines.append(FoundLine(newlines, raw, tuple(sorted(numbers)), above, bool(starts[at] < 0)))

    def _all_steps(self, places: Ints, found: Found) -> None:
        """Every rank's step lines; whose are wanted in full is not known here."""
        index = np.searchsorted(self._ends, places)
        index = index[np.diff(index, prepend=-1) > 0]  # each line once
        starts = self._starts(index)
        mine = (starts >= self._first) & (starts < self._last) & (index < len(self._ends))
        index, starts = index[mine], starts[mine]
        if not len(index):
            return
        found.steps = self._texts(starts, np.minimum(self._ends[index], starts + LONGEST))
        found.step_starts = [(drawn[1] or b"") if (drawn := _DRAWN.match(raw)) else raw[:LABEL] for raw in found.steps]
        found.step_numbers = index - self._skipped
        found.last_steps = dict(zip(found.step_starts, found.steps, strict=True))

    def _own_steps(self, label: Label, found: Found) -> None:
        """One rank's step lines, told by how they begin: no other rank's are looked at."""
        # All line starts of the piece; the front of the file is none, its piece is read before a label is known.
        begin, end = max(self._skipped - 1, 0), int(np.searchsorted(self._ends, self._last - 1))
        # The second letter alone rules out most ranks, and single bytes are gathered ten times as fast as words.
        own = np.flatnonzero(self._spare[2:].take(self._ends[begin:end]) == label.start[1])
        index, starts = own + begin + 1, self._ends[own + begin] + 1
        words = np.ndarray((len(self._spare) - LABEL + 1,), np.uint64, self._spare.data, strides=(1,))
        mine = (words[starts] == np.frombuffer(label.start, np.uint64)[0]) & (starts >= self._first)
        index, starts = index[mine], starts[mine]
        found.step_numbers = index - self._skipped
        ends = np.minimum(self._ends[index], starts + LONGEST)
        rows = self._rows(starts, ends) if label.dialect is not None else None
        found.step_table = (
            None if rows is None or label.dialect is None else read_rows(rows, ends - starts, label.dialect)
        )
        if rows is not None and found.step_table is not None:
            found.step_text = rows.tobytes()
        else:
            lines = self._texts(starts, ends)
            held = [label.needle in raw for raw in lines]
            found.step_numbers = found.step_numbers[held]
            found.step_text = b"\n".join(compress(lines, held))
        if len(found.step_numbers):
            found.last_steps[label.start] = found.step_text.rstrip(b"\n").rpartition(b"\n")[2]

    def _texts(self, starts: Ints, ends: Ints) -> list[bytes]:
        """The lines without their newlines."""
        rows = self._rows(starts, ends)
        if rows is None:
            data = self._data.data
            return [data[a:b].tobytes() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        # One copy of all lines and one split: a slice for each line would hold the interpreter ten times as long.
        return [raw for raw in rows.tobytes().split(b"\n") if raw]

    def _rows(self, starts: Ints, ends: Ints) -> Letters | None:
        """The lines as rows of a table, filled up with newlines; None when one is too long for that."""
        width = int((ends - starts).max(initial=0)) + 1
        if width > _ROW:
            return None
        rows = np.ndarray((len(self._spare) - width + 1, width), np.uint8, self._spare.data, strides=(1, 1))[starts]
        if (ends - starts < width - 1).any():
            np.putmask(rows, np.arange(width, dtype=np.int16) >= (ends - starts).astype(np.int16)[:, None], 10)
        rows[:, -1] = 10
        return rows
