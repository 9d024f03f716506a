"""Lines of a file of any size: by number, text, time and rank, from the front or from the end."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.layout import Job
from trackwalker.record.line_clock import LineClock

LONGEST_RAW = 4096  # bytes of a line that are looked at


# A file as bytes, read piece by piece: a log that is cut meanwhile gives less, where a mapped one would kill us.
CHUNK = 1 << 20


class Held:
    """An open file of the size it had when it was opened; behind what is still there, there is nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._place, self._piece = -1, b""  # the piece that was read last: lines lie side by side

    def __len__(self) -> int:
        return self._size

    def part(self, begin: int, end: int) -> bytes:
        """The bytes from one place to another, fewer where the file has become shorter."""
        end = min(end, self._size)
        if self._place <= begin and end <= self._place + len(self._piece):
            return self._piece[begin - self._place : end - self._place]
        return os.pread(self._descriptor, end - begin, begin) if begin < end else b""

    def find(self, what: bytes, begin: int) -> int:
        """Where one byte stands next, -1 where it does not."""
        while begin < self._size:
            place = begin // CHUNK * CHUNK
            if place != self._place:
                self._place, self._piece = place, self.part(place, place + CHUNK)
            found = self._piece.find(what, begin - place)
            if found >= 0:
                return place + found
            begin = place + CHUNK
        return -1

    def rfind(self, what: bytes, end: int) -> int:
        """Where one byte stood last before a place, -1 where it did not."""
        while end > 0:
            begin = max(0, end - CHUNK)
            found = self.part(begin, end).rfind(what)
            if found >= 0:
                return begin + found
            end = begin
        return -1

    def count(self, what: bytes, begin: int, end: int) -> int:
        """How often one byte stands between two places."""
        return sum(self.part(at, min(end, at + CHUNK)).count(what) for at in range(begin, end, CHUNK))

    def search(self, pattern: re.Pattern[bytes], begin: int, longest: int) -> tuple[int, int] | None:
        """Where a pattern of at most so many bytes is found next."""
        for at in range(begin, self._size, CHUNK):
            match = pattern.search(self.part(at, at + CHUNK + longest))
            if match is not None:
                return at + match.start(), at + match.end()
        return None


@dataclass(frozen=True)
class Line:
    """One line with its number, and where the next one begins."""

    number: int
    raw: bytes
    after: int


@dataclass(frozen=True)
class Wanted:
    """Which lines; what is not said does not limit."""

    first: int | None = None
    last: int | None = None
    contains: str = ""
    exclude: str = ""
    since: float | None = None  # epoch seconds
    until: float | None = None
    label: re.Pattern[bytes] | None = None  # how a rank's lines begin in a merged log

    @property
    def timed(self) -> bool:
        """Whether the lines' times matter."""
        return self.since is not None or self.until is not None


def find_lines(data: Held, at: int, number: int, wanted: Wanted, clock: Callable[[], LineClock]) -> Iterator[Line]:
    """The lines that are wanted, from a place on."""
    if wanted.timed:
        lines = _in_time(data, at, wanted, clock())
    else:
        if wanted.first is not None and number < wanted.first:
            at, number = line_start(data, wanted.first)
        lines = hits(data, at, number, wanted.contains)
    texts = [text.encode().lower() for text in (wanted.contains, wanted.exclude)]
    for line in lines:
        if wanted.last is not None and line.number > wanted.last:
            return
        if wanted.label is not None and not wanted.label.match(line.raw):
            continue
        low = line.raw.lower()
        if (wanted.first is not None and line.number < wanted.first) or (wanted.timed and texts[0] not in low):
            continue
        if texts[1] and texts[1] in low:
            continue
        yield line


def newest(lines: Iterator[Line], most: int) -> list[Line]:
    """The last of them, the newest first."""
    return list(reversed(deque(lines, maxlen=most)))


def oldest(lines: Iterator[Line], most: int) -> list[Line]:
    """The first of them."""
    return list(islice(lines, most))


def _in_time(data: Held, at: int, wanted: Wanted, clock: LineClock) -> Iterator[Line]:
    """Lines of a stretch of time; a line without a time has that of what stands before it."""
    told = False
    for line in all_lines(data, 0, 1):  # from the front: what a line's time is depends on those before
        when = clock.at(line.raw)
        if when is None:
            continue
        told = True
        if wanted.until is not None and when > wanted.until:
            continue
        if line.after > at and (wanted.since is None or when >= wanted.since):
            yield line
    if not told:
        raise EvidenceError("no line of this log has a time: ask by line numbers or by text")


def of_rank(job: Job, rank: int | None) -> tuple[Path | None, re.Pattern[bytes] | None]:
    """A rank's own file; where it has none, the job's log, and how the rank's lines begin there."""
    if rank is None:
        return job.log, None
    own = [job.dir / "ranks" / f"{rank}.log", job.dir / f"rank-{rank}.log"] if job.dir is not None else []
    path = next((each for each in own if each.is_file()), None)
    return (path, None) if path is not None else (job.log, re.compile(rb"\s*0*%d: " % rank))


@contextmanager
def opened(path: Path) -> Iterator[Held]:
    """A file as bytes, however large; an empty one has none."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise EvidenceError(f"{path.name} is empty")
            yield Held(file.fileno())
    except OSError as e:
        raise EvidenceError(f"cannot read {path.name}: {e.strerror}") from e


def line_start(data: Held, number: int) -> tuple[int, int]:
    """The offset of a line, and its number."""
    at, current = 0, 1
    for begin in range(0, len(data), CHUNK):
        chunk = data.part(begin, begin + CHUNK)
        inside = chunk.count(b"\n")
        if current + inside < number:
            current += inside
            continue
        at = begin
        while current < number:
            found = chunk.find(b"\n", at - begin)
            at, current = begin + found + 1, current + 1
        return at, current
    raise UsageError(f"the log has {count_lines(data)} lines, so no line {number}")


def hits(data: Held, at: int, number: int, contains: str) -> Iterator[Line]:
    """The lines with a text, in any case; all of them where there is none."""
    if not contains:
        yield from all_lines(data, at, number)
        return
    words = contains.encode()
    pattern = re.compile(re.escape(words), re.IGNORECASE)
    counted = at
    while (match := data.search(pattern, at, len(words))) is not None:
        begin = data.rfind(b"\n", match[0]) + 1
        end = data.find(b"\n", match[1])
        after = len(data) if end < 0 else end + 1
        number += data.count(b"\n", counted, begin)
        counted = begin
        yield Line(number, data.part(begin, min(after, begin + LONGEST_RAW)), after)
        at = after


def all_lines(data: Held, at: int, number: int) -> Iterator[Line]:
    """Every line from a place on."""
    while at < len(data):
        end = data.find(b"\n", at)
        after = len(data) if end < 0 else end + 1
        yield Line(number, data.part(at, min(after, at + LONGEST_RAW)), after)
        at, number = after, number + 1


def count_lines(data: Held) -> int:
    """How many lines there are."""
    return data.count(b"\n", 0, len(data)) + (data.part(len(data) - 1, len(data)) != b"\n")
