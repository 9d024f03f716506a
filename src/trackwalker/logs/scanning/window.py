"""Pieces of a log of any size: the lines around a number, after a place, before it. Nothing is ever read whole.

Files are read by position and not mapped into memory: a mapped file that is cut while it is read kills the process.
"""

from __future__ import annotations

import os
import re
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import TracebackType

from trackwalker.errors import EvidenceError

BLOCK = 1 << 20
LONGEST = 2304  # bytes of a line that are given at once
_FARTHEST = 1 << 28  # bytes: a line may be longer, but nobody looks farther for its ends
_MARK = 64  # bytes that tell whether the counted part is still the same text


@dataclass(frozen=True)
class Wanted:
    """Lines that begin in a certain way; `hint` is found in each of them and is quick to look for."""

    begins: re.Pattern[bytes]
    hint: re.Pattern[bytes]

    def __call__(self, raw: bytes) -> bool:
        """Whether a line is one of them."""
        return self.begins.match(raw) is not None

    def among(self, block: bytes, begin: int, end: int) -> Iterator[int]:
        """Where such lines begin between two places of a block; both are beginnings of lines."""
        while (hint := self.hint.search(block, begin, end)) is not None:
            begin = max(begin, block.rfind(b"\n", begin, hint.start()) + 1)
            if self.begins.match(block, begin):
                yield begin
            begin = block.find(b"\n", hint.start()) + 1 or end


@dataclass(frozen=True)
class Line:
    """One line: where it lies in the file, and the beginning of what it says."""

    start: int
    end: int  # behind its last byte; the newline is not part of it
    raw: bytes

    @property
    def size(self) -> int:
        """How many bytes the whole line has."""
        return self.end - self.start


@dataclass(frozen=True)
class Window:
    """Lines in the order of the file; `at` is where to go on, `stopped` says that time ran out before that."""

    lines: list[Line]
    at: int
    stopped: bool = False


class OpenLog:
    """A log that is open for reading by position; `size` is how long it was when it was opened."""

    def __init__(self, path: Path) -> None:
        try:
            # A pipe or a device in place of a log must not hold us up.
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            held = os.fstat(self._fd)
        except OSError as e:
            raise EvidenceError(f"cannot read {path.name}: {e.strerror}") from e
        self.name = path.name
        self.size = held.st_size
        self.identity = (held.st_dev, held.st_ino)

    def __enter__(self) -> OpenLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._fd)

    def read(self, at: int, size: int) -> bytes:
        """Bytes from a place on; fewer where the file ends or was cut meanwhile."""
        try:
            return os.pread(self._fd, max(0, min(size, self.size - at)), max(at, 0))
        except OSError as e:
            raise EvidenceError(f"cannot read {self.name}: {e.strerror}") from e

    def line_start(self, at: int) -> int:
        """Where the line that holds this byte begins."""
        at = end = min(max(at, 0), self.size)
        while end > 0 and at - end < _FARTHEST:
            begin = max(0, end - BLOCK)
            found = self.read(begin, end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
        return end

    def line_end(self, at: int) -> int:
        """Where the line that holds this byte ends: at its newline, or at the end of the file."""
        begin = at
        while begin < self.size and begin - at < _FARTHEST:
            block = self.read(begin, BLOCK)
            found = block.find(b"\n")
            if found >= 0:
                return begin + found
            if not block:
                break
            begin += len(block)
        return min(begin, self.size)

    def line_at(self, at: int) -> Line:
        """The line that holds this byte."""
        start = self.line_start(at)
        end = self.line_end(start)
        return Line(start, end, self.read(start, min(end - start, LONGEST)))

    def forward(self, at: int, count: int, wanted: Wanted | None = None, until: float | None = None) -> Window:
        """The next lines from a line's beginning on, those that are wanted."""
        lines: list[Line] = []
        while at < self.size and len(lines) < count:
            if _over(until):
                return Window(lines, at, stopped=True)
            block = self.read(at, BLOCK)
            whole = block.rfind(b"\n") + 1  # of the block, in whole lines
            if not block:
                break
            if not whole:  # longer than a block, or the last line without its newline
                end = self.line_end(at + len(block))
                if wanted is None or wanted(block[:LONGEST]):
                    lines.append(Line(at, end, block[:LONGEST]))
                at = end + 1
                continue
            for begin in _starts(block, whole) if wanted is None else wanted.among(block, 0, whole):
                lines.append(_line(block, begin, at))
                if len(lines) == count:
                    return Window(lines, lines[-1].end + 1)
            at += whole
        return Window(lines, min(at, self.size))

    def backward(self, at: int, count: int, wanted: Wanted | None = None, until: float | None = None) -> Window:
        """The lines before a line's beginning, as many as are wanted; `at` of the answer is where the first begins."""
        lines: list[Line] = []
        at = min(at, self.size)
        while at > 0 and len(lines) < count:
            if _over(until):
                return Window(lines[::-1], at, stopped=True)
            begin = max(0, at - BLOCK)
            block = self.read(begin, at - begin)
            if len(block) < at - begin:
                break  # cut meanwhile
            first = 0 if begin == 0 else block.find(b"\n") + 1  # the first line that begins in the block
            if (begin and not first) or first == len(block):  # one that began before it
                line = self.line_at(begin)
                if wanted is None or wanted(line.raw):
                    lines.append(line)
                at = line.start
                continue
            if not block.endswith(b"\n"):
                block += b"\n"
            found = _starts(block, len(block)) if wanted is None else wanted.among(block, first, len(block))
            for start in reversed([each for each in found if each >= first]):
                lines.append(_line(block, start, begin))
                if len(lines) == count:
                    return Window(lines[::-1], begin + start)
            at = begin + first
        return Window(lines[::-1], at)


@dataclass
class LineCounts:
    """How many newlines lie before each block of a log: what finds a line by its number. Grows with the log."""

    identity: tuple[int, int] = (0, 0)
    _before: array[int] = field(default_factory=lambda: array("q", [0]))
    _mark: bytes = b""
    _lock: Lock = field(default_factory=Lock)

    @property
    def counted(self) -> int:
        """Bytes that are counted; what lies behind the last whole block is counted when it is asked for."""
        return (len(self._before) - 1) * BLOCK

    def whole(self, log: OpenLog) -> bool:
        """Whether every line of the log can be numbered."""
        return log.size - self.counted < BLOCK

    def advance(self, log: OpenLog, until: float, line: int | None = None) -> None:
        """Count on, to the end or as far as that line, until a moment of the monotonic clock."""
        with self._lock:
            if not self._same(log):
                self.identity, self._mark = log.identity, b""
                self._before = array("q", [0])
            while not self.whole(log) and not _over(until) and (line is None or self._before[-1] < line):
                block = log.read(self.counted, BLOCK)
                if len(block) < BLOCK:
                    return  # cut meanwhile
                self._before.append(self._before[-1] + block.count(b"\n"))
                self._mark = block[-_MARK:]

    def start_of(self, log: OpenLog, line: int) -> int | None:
        """Where a line begins; None where it is not counted that far, or the log has no such line."""
        if line <= 1:
            return 0
        at = bisect_left(self._before, line - 1) - 1  # the block that holds the newline before it
        missing = line - 1 - self._before[at]
        block, found = log.read(at * BLOCK, BLOCK), -1
        for _ in range(missing):
            found = block.find(b"\n", found + 1)
            if found < 0:
                return None
        start = at * BLOCK + found + 1
        return start if start < log.size else None

    def number_at(self, log: OpenLog, start: int) -> int | None:
        """The number of the line that begins at a place; None where it is not counted that far."""
        at = start // BLOCK
        if at >= len(self._before):
            return None
        return self._before[at] + log.read(at * BLOCK, start - at * BLOCK).count(b"\n") + 1

    def lines(self, log: OpenLog) -> int | None:
        """How many lines the log has, once all of it is counted."""
        if not self.whole(log):
            return None
        number = self.number_at(log, log.size)
        if number is None or (log.size and log.read(log.size - 1, 1) != b"\n"):
            return number
        return number - 1

    def _same(self, log: OpenLog) -> bool:
        if self.identity != log.identity or self.counted > log.size:
            return False
        return log.read(self.counted - len(self._mark), len(self._mark)) == self._mark


def around(path: Path, line: int, before: int, after: int, seconds: float = 2.0) -> list[tuple[int, Line]]:
    """The lines around a number, with their numbers; none where it lies farther than that time allows to count."""
    with OpenLog(path) as log:
        counts, first = LineCounts(), max(1, line - before)
        counts.advance(log, time.monotonic() + seconds, line)
        start = counts.start_of(log, first)
        if start is None:
            return []
        return list(enumerate(log.forward(start, line - first + 1 + after).lines, first))


def _starts(block: bytes, end: int) -> Iterator[int]:
    begin = 0
    while begin < end:
        yield begin
        begin = block.find(b"\n", begin) + 1 or end


def _line(block: bytes, start: int, at: int) -> Line:
    """The line that begins at a place of a block that lies at an offset of the file."""
    end = block.find(b"\n", start)
    return Line(at + start, at + end, block[start : min(end, start + LONGEST)])


def _over(until: float | None) -> bool:
    return until is not None and time.monotonic() > until
