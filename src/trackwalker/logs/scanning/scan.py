"""Find the few lines that matter in a log of any size, at the speed of the disk cache.

A regular expression over hundreds of literals runs at 10 MB/s, so a compiled search for all of them at once looks first
and only lines that hold one are ever decoded. The file is read in pieces of a fixed grid, several at a time; what a
piece gives does not depend on when it was read, so a growing log can be read piece by piece with the same result.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import compress, islice
from pathlib import Path

import numpy as np

from trackwalker.errors import EvidenceError
from trackwalker.job.dialects import Dialect, dialects
from trackwalker.logs.scanning.chunk import CHUNK, FRONT, LABEL, Buffers, Chunk, Found, FoundLine, Label
from trackwalker.logs.scanning.needles import Ints, Needles
from trackwalker.logs.scanning.stamps import written_at
from trackwalker.logs.scanning.steptable import Floats

_THREADS = 4
_HAND_OVER_S = 0.0005
_TAIL = 1 << 16
BEGINNING = 1 << 17  # launchers tell there who runs where
_TAIL_CHUNKS = 4
_MOST_STOPPED = 64  # ranks whose last line is searched for in the middle of the file
_MOST_KEPT = 64  # pieces whose last step lines are remembered
_MOST_FOR_RANKS = 80 << 20  # bytes: half a million step lines; beyond that only one rank's are read in full
_TELLS_RANK = re.compile(rb"\s*\d{1,6}: |\[\w{0,10}\d{1,6}\]")


@contextmanager
def _quick_hand_over() -> Iterator[None]:
    """Threads that search for a millisecond and then need the interpreter must not wait five for it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_HAND_OVER_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@dataclass(frozen=True)
class Line:
    """A line that holds at least one needle."""

    number: int
    raw: bytes
    needles: tuple[int, ...]  # positions in the list of needles
    before: bytes  # the line above, cut to what a decision needs


@dataclass
class StepLines:
    """The step lines of one piece: the chosen rank's in full, of every rank the last one."""

    text: bytes = b""  # the lines, newlines between them
    numbers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    last: dict[bytes, bytes] = field(default_factory=dict)  # line start (the label) -> last line
    table: Floats | None = None  # what the lines say, where they were read as a table
    starts: list[bytes] | None = None  # how each line begins, where every rank's are given

    @property
    def lines(self) -> list[bytes]:
        """Each line by itself."""
        return [raw for raw in self.text.split(b"\n") if raw]

    def pick(self, wanted: list[bool], last: dict[bytes, bytes]) -> StepLines:
        """Some of the lines, with other last ones."""
        return StepLines(b"\n".join(compress(self.lines, wanted)), self.numbers[wanted], last)


@dataclass
class Scan:
    """What one pass over one file gave."""

    path: Path
    size: int = 0
    lines: int = 0
    ends_mid_line: bool = False
    skipped: int = 0  # repeats of a flooding line that were not looked at
    front: bytes = b""  # the beginning of the file
    tail: bytes = b""  # the end of the file


OnLine = Callable[[Line], None]
OnSteps = Callable[[StepLines], None]
Choose = Callable[[list[bytes]], bytes | None]


def read_lines(
    path: Path,
    needles: Needles,
    on_line: OnLine,
    on_steps: OnSteps | None = None,
    label: Choose | None = None,
    every_rank: bool = False,
    brief: bool = False,
) -> Scan:
    """One pass: `on_line` gets every line with a needle, in order; `on_steps` the step lines, piece by piece.

    `label` chooses, from the starts of the first step lines seen, whose step lines are wanted in full; with
    `every_rank` all are given, as long as the file is not larger than a table of them may be; with `brief` only the
    last ones, where they tell their step.
    """
    scan = Scan(path)
    try:
        with path.open("rb") as f:
            scan.size = os.fstat(f.fileno()).st_size
            reading = Reading(f.fileno(), needles, every_rank and scan.size <= _MOST_FOR_RANKS, brief)
            reading.advance(scan.size, chunks(scan.size), on_line, on_steps, label)
            reading.finish(scan, on_steps)
    except OSError as e:
        raise EvidenceError(f"cannot read the log {path}: {e.strerror}") from e
    return scan


def at_once(dialect: Dialect | None, line: bytes) -> Dialect | None:
    """The dialect, where its lines can be read as a table: they count their steps and carry no time of their own."""
    if dialect is None or dialect.beside or "step" not in dialect.expression.groupindex:
        return None
    stamped = written_at(line.decode("utf-8", "replace"))
    return dialect if stamped != stamped else None


@cache
def _uncounted() -> tuple[bytes, ...]:
    """Words of step lines that do not tell their step: which one the last is shows only when all are counted."""
    return tuple(n for each in dialects() if "step" not in each.expression.groupindex for n in each.needles)


def chunks(size: int) -> int:
    """How many pieces a file of this size has."""
    return -(-size // CHUNK)


class Reading:
    """How far a file has been read, and what must be known to read on."""

    def __init__(self, fd: int, needles: Needles, every_rank: bool = False, brief: bool = False) -> None:
        self._fd, self._needles, self._every_rank, self._brief = fd, needles, every_rank, brief
        self._size = 0
        self.done = 0  # pieces
        self._lines = 0
        self._line_start = 0  # offset of the line that is open at the end of the last piece
        self._skipped = 0
        self._wanted: bytes | None = None
        self._label: Label | None = None  # once it is known whose step lines are wanted
        self._first_steps: tuple[int, dict[bytes, bytes]] = (0, {})
        self._held: dict[int, dict[bytes, bytes]] = {}
        self._local = threading.local()

    def advance(self, size: int, until: int, on_line: OnLine, on_steps: OnSteps | None, choose: Choose | None) -> None:
        """Read the pieces up to this number of a file that has this size now."""
        self._size = size
        for found in self._found(until):
            for line in found.lines:
                on_line(Line(self._lines + line.newlines + 1, self._whole(line), line.needles, line.above))
            if on_steps is not None and found.last_steps:
                on_steps(self._step_lines(found, choose))
            self._lines += found.newlines
            self._skipped += found.skipped
            self._line_start = self._line_start if found.last_newline is None else found.last_newline + 1
            self.done += 1

    def finish(self, scan: Scan, on_steps: OnSteps | None) -> None:
        """Tell what is known at the end of the file only."""
        if on_steps is not None and self._label is not None:
            on_steps(StepLines(last=self._last_lines()))
        scan.size, scan.skipped = self._size, self._skipped
        scan.ends_mid_line = self._line_start < self._size
        scan.lines = self._lines + (1 if scan.ends_mid_line else 0)
        scan.front = os.pread(self._fd, min(self._size, BEGINNING), 0)
        begin = max(0, self._size - _TAIL)
        scan.tail = os.pread(self._fd, self._size - begin, begin)

    def _found(self, until: int) -> Iterator[Found]:
        """The pieces' findings in order; a few are worked on at a time, so that memory stays bounded."""
        if self.done < until:
            yield self._look(self.done, self._label)  # mostly tells whose step lines to search for in the others
        if self.done == until:
            return
        numbers = iter(range(self.done, until))
        threads = min(_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads) as pool, _quick_hand_over():
            pending: list[Future[Found]] = [
                pool.submit(self._look, n, self._label) for n in islice(numbers, 2 * threads)
            ]
            while pending:
                found = pending.pop(0).result()
                pending += [pool.submit(self._look, n, self._label) for n in islice(numbers, 1)]
                yield found

    def _look(self, number: int, label: Label | None = None) -> Found:
        """Search one piece. Everything heavy here runs without the interpreter lock."""
        if not hasattr(self._local, "buffers"):
            self._local.buffers = Buffers()
        chunk = Chunk(self._fd, number, self._size, self._local.buffers)
        found = chunk.search(self._needles, label, self._brief)
        if self._brief and any(n in raw for raw in found.last_steps.values() for n in _uncounted()):
            found = chunk.search(self._needles, label)
        return found

    def _whole(self, line: FoundLine) -> bytes:
        """A part of a long line with the line's beginning: whose it is and whether it is payload stands there."""
        return os.pread(self._fd, FRONT, self._line_start) + line.raw if line.cut else line.raw

    def _step_lines(self, found: Found, choose: Choose | None) -> StepLines:
        numbers = found.step_numbers + (self._lines + 1)
        if not found.step_starts:  # the piece was searched for the wanted rank alone
            return StepLines(found.step_text, numbers, found.last_steps, found.step_table)
        known, last = self._label, found.last_steps
        if self._every_rank:
            if self._wanted is None and choose is not None:
                self._wanted = choose(list(last))
            return StepLines(b"\n".join(found.steps), numbers, last, starts=found.step_starts)
        if self._wanted is None and choose is not None:
            self._wanted = choose(list(last))
            self._label = self._label_of(last)
            self._first_steps = (self.done, last)
        own = [i for i, start in enumerate(found.step_starts) if start == self._wanted]
        if known is not None:  # searched before the label was known: what a later search would not see does not count
            own = [i for i in own if known.needle in found.steps[i]]
            last = {known.start: found.steps[own[-1]]} if own else {}
        return StepLines(b"\n".join([found.steps[i] for i in own]), numbers[own], last)

    def _label_of(self, last: dict[bytes, bytes]) -> Label | None:
        """The label to search by, where the wanted rank's lines begin in a way that no other rank's do."""
        if self._wanted is None or len(self._wanted) < LABEL or len(last) < 2 or not _TELLS_RANK.match(self._wanted):
            return None
        line = last[self._wanted]
        places = [(at, n) for n in self._needles.steps if (at := line.lower().find(n)) >= 0]
        if not places:
            return None
        needle = line[places[0][0] :][: len(places[0][1])]
        return Label(self._wanted, needle, at_once(next((d for d in dialects() if needle in d.needles), None), line))

    def _last_lines(self) -> dict[bytes, bytes]:
        """Each rank's last step line: near the end of the file, or where a rank that stopped early was seen last."""
        first, seen = self._first_steps
        numbers = range(first, chunks(self._size))
        last: dict[bytes, bytes] = {}
        for number in reversed(numbers[-_TAIL_CHUNKS:]):
            for label, raw in self._steps_in(number).items():
                last.setdefault(label, raw)
            if last.keys() >= seen.keys():
                return last
        for label in sorted(seen.keys() - last.keys())[:_MOST_STOPPED]:
            low, high = numbers[0], numbers[-1]
            while low < high:  # the last piece that still holds a line of this rank
                middle = (low + high + 1) // 2
                low, high = (middle, high) if label in self._steps_in(middle) else (low, middle - 1)
            last[label] = self._steps_in(low).get(label, seen[label])
        return last

    def _steps_in(self, number: int) -> dict[bytes, bytes]:
        if number in self._held:
            return self._held[number]
        last = self._look(number).last_steps
        if len(self._held) >= _MOST_KEPT:
            self._held.clear()
        self._held[number] = last
        return last
