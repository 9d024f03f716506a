"""Find the few lines that matter in a log of any size, at the speed of the disk cache.

A regular expression over hundreds of literals runs at 10 MB/s, so numpy looks first: the file is taken as aligned
4-byte words, and one table says for each word whether any needle could stand there. A needle of seven bytes or more
covers one whole aligned word wherever it begins; of the possible windows of a needle the one that is rarest in this
very log is used. Only places that pass are compared with the needle itself, and only those lines are ever decoded.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trackwalker.errors import EvidenceError
from trackwalker.logs.needles import BITS, FOLD, PRIME, Bytes, Index, Ints, Needles, fold, narrowed

LABEL = 8  # bytes at the start of a step line that tell its rank
_CHUNK = 1 << 20
_LEAD = 256  # bytes before a chunk: the end of the line above
_LONGEST = 4096  # what we match stands near the front of a line; the rest of a megabyte line is payload
_BLOCK = 1 << 17
_BUFFER = _LEAD + _CHUNK + _LONGEST + 4
_FLOOD = 48  # of one word in one chunk: a warning printed by every rank every step must not cost seconds
_PLENTY = 20_000
_THREADS = 4
_TAIL_CHUNKS = 8
_MOST_STOPPED = 64  # ranks whose last line is searched for in the middle of the file
_PLAIN_LABEL = re.compile(rb"\s*\d{1,6}: |\[\w{0,10}\d{1,6}\]: ?")


@dataclass(frozen=True)
class Line:
    """A line that holds at least one needle."""

    number: int
    raw: bytes
    needles: tuple[int, ...]  # positions in the list of needles
    before: bytes  # the line above, cut to what a decision needs


@dataclass
class StepLines:
    """The step lines of one chunk: the chosen rank's in full, of every rank the last one."""

    lines: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    last: dict[bytes, bytes] = field(default_factory=dict)  # line start (the label) -> last line


@dataclass
class _Found:
    newlines: int
    lines: list[tuple[int, int, bytes, tuple[int, ...], bytes]]  # offset, newlines before, line, needles, line above
    steps: StepLines
    skipped: int = 0


@dataclass
class Scan:
    """What one pass over one file gave."""

    path: Path
    size: int = 0
    lines: int = 0
    ends_mid_line: bool = False
    skipped: int = 0  # repeats of a flooding line that were not looked at


def read_lines(
    path: Path,
    needles: Needles,
    on_line: Callable[[Line], None],
    on_steps: Callable[[StepLines], None] | None = None,
    label: Callable[[list[bytes]], bytes | None] | None = None,
) -> Scan:
    """One pass: `on_line` gets every line with a needle, in order; `on_steps` the step lines, chunk by chunk.

    `label` chooses, from the starts of the first step lines seen, whose step lines are wanted in full.
    """
    scan = Scan(path)
    try:
        with path.open("rb") as f:
            # Positioned reads, not a mapping: a log that is cut while we read it must not kill us with a SIGBUS,
            # and two gigabytes of mapped pages would count as our memory.
            fd = f.fileno()
            scan.size = os.fstat(fd).st_size
            if scan.size:
                scan.ends_mid_line = os.pread(fd, 1, scan.size - 1) != b"\n"
                _Pass(fd, scan, needles, label).run(on_line, on_steps)
    except OSError as e:
        raise EvidenceError(f"cannot read the log {path}: {e.strerror}") from e
    return scan


class _Pass:
    def __init__(
        self, fd: int, scan: Scan, needles: Needles, label: Callable[[list[bytes]], bytes | None] | None
    ) -> None:
        self._fd, self._scan, self._needles, self._choose = fd, scan, needles, label
        self._index = needles.index(self._sample())
        self._wanted: bytes | None = None
        self._narrow: Index | None = None  # once it is known whose step lines are wanted
        self._local = threading.local()

    def run(self, on_line: Callable[[Line], None], on_steps: Callable[[StepLines], None] | None) -> None:
        lines_before, last_offset = 0, -1
        for found in self._chunks():
            for offset, newlines, raw, needles, before in found.lines:
                if offset > last_offset:  # a line across two chunks is found in both
                    on_line(Line(lines_before + newlines + 1, raw, needles, before))
                    last_offset = offset
            if on_steps is not None and found.steps.last:
                found.steps.numbers = [lines_before + n + 1 for n in found.steps.numbers]
                on_steps(found.steps)
            lines_before += found.newlines
            self._scan.skipped += found.skipped
        if on_steps is not None and self._narrow is not None:
            on_steps(StepLines(last=self._last_lines()))
        self._scan.lines = lines_before + (1 if self._scan.ends_mid_line else 0)

    def _chunks(self) -> Iterator[_Found]:
        """The chunks' findings in order; a few are worked on at a time, so that memory stays bounded."""
        offsets = iter(range(0, self._scan.size, _CHUNK))
        if self._choose is not None:
            for offset in offsets:  # until the first step lines say which rank to read
                yield (found := self._look(offset))
                if found.steps.last:
                    self._first_steps = (offset, dict(found.steps.last))
                    self._narrow = self._narrowed(found.steps.last)
                    break
        threads = min(_THREADS, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads) as pool:
            pending: list[Future[_Found]] = [pool.submit(self._look, o) for o in islice(offsets, 2 * threads)]
            while pending:
                found = pending.pop(0).result()
                for offset in islice(offsets, 1):
                    pending.append(pool.submit(self._look, offset))
                yield found

    def _narrowed(self, last: dict[bytes, bytes]) -> Index | None:
        """An index for the wanted rank's step lines alone, where a plain label tells them from the others'."""
        line = last.get(self._wanted or b"", b"")
        for needle in self._needles.steps:
            at = fold(line).find(needle)
            if at > 0 and len(last) > 1 and _PLAIN_LABEL.fullmatch(line[:at]):
                return narrowed(self._index, line[: at + len(needle)])
        return None

    def _last_lines(self) -> dict[bytes, bytes]:
        """Each rank's last step line: near the end of the file, or where a rank that stopped early was seen last."""
        first, seen = self._first_steps
        chunks = range(first // _CHUNK, -(-self._scan.size // _CHUNK))
        last: dict[bytes, bytes] = {}
        for number in reversed(chunks[-_TAIL_CHUNKS:]):
            for label, raw in self._look(number * _CHUNK, self._index).steps.last.items():
                last.setdefault(label, raw)
            if last.keys() >= seen.keys():
                return last
        for label in sorted(seen.keys() - last.keys())[:_MOST_STOPPED]:
            low, high = chunks[0], chunks[-1]
            while low < high:  # the last chunk that still holds a line of this rank
                middle = (low + high + 1) // 2
                held = self._look(middle * _CHUNK, self._index).steps.last
                low, high = (middle, high) if label in held else (low, middle - 1)
            last[label] = self._look(low * _CHUNK, self._index).steps.last.get(label, seen[label])
        return last

    def _sample(self) -> Bytes:
        size, piece = self._scan.size, 1 << 18
        places = sorted({0, max(0, size // 2), max(0, size - piece)})
        return np.frombuffer(b"".join(os.pread(self._fd, piece, p) for p in places), np.uint8)

    def _look(self, offset: int, index: Index | None = None) -> _Found:
        """Search one chunk. Everything heavy here runs without the interpreter lock."""
        if not hasattr(self._local, "work"):
            self._local.work = _Work()
        work: _Work = self._local.work
        index = index or self._narrow or self._index
        data = work.data
        lead = min(offset, _LEAD)
        size = os.preadv(self._fd, [data.data], offset - lead)
        if size <= lead:  # the file was cut while we read it
            return _Found(0, [], StepLines())
        words = size // 4 + 1
        data[size : words * 4] = 10  # a last line without its newline counts as ended
        last = min(size, lead + _CHUNK)
        hits = work.candidates(words, index.table)
        hit_words = data[: words * 4].view(np.uint32)[hits] | np.uint32(FOLD)
        found = _Found(0, [], StepLines())
        chunk = _Chunk(offset - lead, lead, last, data[: words * 4])
        is_text, is_step = index.kinds(hit_words)
        texts, needles = index.text.confirm(hits[is_text] * 4, hit_words[is_text], chunk.words)
        steps, _ = index.steps.confirm(hits[is_step] * 4, hit_words[is_step], chunk.words)
        in_bulk = index is self._narrow
        if not len(texts) and (in_bulk or not len(steps)) and last < size:
            found.newlines = work.count_newlines(lead, last)
            if len(steps):
                self._own_steps(chunk, np.sort(steps) + 1, found)
            return found
        chunk.cut(work.newlines(words * 4))
        found.newlines = int(np.searchsorted(chunk.ends, last)) - chunk.skipped
        if len(texts):
            self._text(chunk, texts, needles, found)
        if len(steps) and in_bulk:
            self._own_steps(chunk, np.sort(steps) + 1, found)
        elif len(steps):
            self._steps(chunk, np.sort(steps), found)
        return found

    def _text(self, chunk: _Chunk, places: Ints, needles: Ints, found: _Found) -> None:
        seen: dict[int, int] = {}
        lines: dict[int, tuple[int, int, bytes, set[int], bytes]] = {}
        mine = chunk.owns(places)
        order = np.argsort(places[mine], kind="stable")
        for at, number in zip(places[mine][order].tolist(), needles[mine][order].tolist(), strict=True):
            literal = self._needles.literals[number]
            if fold(chunk.data[at : at + len(literal)].tobytes()) != literal:
                continue
            seen[number] = seen.get(number, 0) + 1
            if seen[number] > (_PLENTY if number in self._needles.plenty else _FLOOD):
                found.skipped += 1
                continue
            line = chunk.line(at)
            lines.setdefault(line[0], (*line[:3], set(), line[3]))[3].add(number)
        found.lines = [(o, n, raw, tuple(sorted(ids)), b) for _, (o, n, raw, ids, b) in sorted(lines.items())]

    def _own_steps(self, chunk: _Chunk, starts: Ints, found: _Found) -> None:
        """The wanted rank's lines, whose starts are known.

        Where nothing else happened in a chunk their numbers are reckoned from their places: counting lines would cost
        more than all the rest, and between two chunks the order is right anyway.
        """
        starts = starts[(starts >= chunk.first) & (starts < chunk.last)]
        starts = starts[chunk.labels(starts) == np.frombuffer(self._wanted or bytes(LABEL), np.uint64)[0]]
        text = chunk.data.tobytes() if len(starts) else b""
        for start in starts.tolist():
            end = text.find(b"\n", start, start + _LONGEST)
            found.steps.lines.append(text[start : end if end >= 0 else start + _LONGEST])
        if len(chunk.ends):
            numbers = np.searchsorted(chunk.ends, starts) - chunk.skipped
        else:
            numbers = (starts - chunk.first) * found.newlines // max(chunk.last - chunk.first, 1)
        found.steps.numbers = numbers.tolist()
        if found.steps.lines:
            found.steps.last[found.steps.lines[-1][:LABEL]] = found.steps.lines[-1]

    def _steps(self, chunk: _Chunk, places: Ints, found: _Found) -> None:
        """Of each rank the last step line; of the wanted rank all of them."""
        index = np.searchsorted(chunk.ends, places)
        index = index[np.diff(index, prepend=-1) != 0]
        index = index[index < len(chunk.ends)]
        starts = np.where(index > 0, chunk.ends[index - 1] + 1, 0)
        mine = (starts >= chunk.first) & (starts < chunk.last)
        index, starts = index[mine], starts[mine]
        if not len(starts):
            return
        keys = chunk.labels(starts)
        text = chunk.data.tobytes()
        ends = np.minimum(chunk.ends[index], starts + _LONGEST)
        for at in _last_of_each(keys):
            found.steps.last[text[starts[at] : starts[at] + LABEL]] = text[starts[at] : ends[at]]
        if self._wanted is None and self._choose is not None:
            self._wanted = self._choose(list(found.steps.last))
        if self._wanted is None:
            return
        own = np.flatnonzero(keys == np.frombuffer(self._wanted, np.uint64)[0])
        found.steps.lines = [text[a:b] for a, b in zip(starts[own].tolist(), ends[own].tolist(), strict=True)]
        found.steps.numbers = (index[own] - chunk.skipped).tolist()


class _Work:
    """One thread's buffers. The arithmetic goes block by block, so that it stays in the processor's cache."""

    def __init__(self) -> None:
        self.data = np.empty(_BUFFER, np.uint8)
        self._folded = np.empty(_BLOCK // 4, np.uint32)
        self._slots = np.empty(_BLOCK // 4, np.int64)
        self._mask = np.empty(_BLOCK // 4, np.bool_)
        self._is_newline = np.empty(_BLOCK, np.bool_)

    def candidates(self, words: int, table: NDArray[np.bool_]) -> Ints:
        """Positions of words that the table knows."""
        view = self.data[: words * 4].view(np.uint32)
        found = []
        for begin in range(0, words, _BLOCK // 4):
            block = view[begin : begin + _BLOCK // 4]
            n = len(block)
            folded, slots, mask = self._folded[:n], self._slots[:n], self._mask[:n]
            np.bitwise_or(block, np.uint32(FOLD), out=folded)
            np.multiply(folded, np.uint32(PRIME), out=folded)
            np.right_shift(folded, np.uint32(32 - BITS), out=slots, casting="unsafe")
            table.take(slots, out=mask, mode="clip")
            found.append(np.flatnonzero(mask) + begin)
        return np.concatenate(found)

    def newlines(self, size: int) -> Ints:
        """Where the lines end."""
        found = []
        for begin in range(0, size, _BLOCK):
            block = self.data[begin : min(begin + _BLOCK, size)]
            mask = self._is_newline[: len(block)]
            np.equal(block, 10, out=mask)
            found.append(np.flatnonzero(mask) + begin)
        return np.concatenate(found)

    def count_newlines(self, first: int, last: int) -> int:
        """How many lines end in a part."""
        total = 0
        for begin in range(first, last, _BLOCK):
            block = self.data[begin : min(begin + _BLOCK, last)]
            mask = self._is_newline[: len(block)]
            np.equal(block, 10, out=mask)
            total += int(np.count_nonzero(mask))
        return total


class _Chunk:
    """A piece of the file with a little of what stands before and after it; its lines are those that begin in it."""

    def __init__(self, base: int, first: int, last: int, data: Bytes) -> None:
        self.base, self.first, self.last, self.data = base, first, last, data
        self.ends = np.zeros(0, np.int64)
        self.skipped = 0  # newlines before the part that is ours

    def cut(self, ends: Ints) -> None:
        """Tell where the lines end."""
        self.ends, self.skipped = ends, int(np.searchsorted(ends, self.first))

    def owns(self, places: Ints) -> NDArray[np.bool_]:
        """Which places lie on lines of this chunk, or so far inside a long line that no other chunk sees them."""
        index = np.searchsorted(self.ends, places)
        starts = np.where(index > 0, self.ends[np.maximum(index, 1) - 1] + 1, 0) if len(self.ends) else 0 * places
        begins_here = (starts >= self.first) & (starts < self.last)
        beyond = (starts < self.first) & (places >= self.first + _LONGEST - 64) & (places < self.last)
        return np.asarray(begins_here | beyond, np.bool_)

    def words(self, places: Ints) -> NDArray[np.uint32]:
        """Four bytes at each place, folded; beyond the edges whatever stands at them."""
        unaligned = np.ndarray((len(self.data) - 3,), np.uint32, self.data.data, strides=(1,))
        # Fancy indexing, not take(): that would copy the whole unaligned array first.
        return np.asarray(unaligned[np.clip(places, 0, len(unaligned) - 1)] | np.uint32(FOLD))

    def labels(self, starts: Ints) -> NDArray[np.uint64]:
        """The first eight bytes of each line: "07: comp", " 7: comp", "(MaxText" tell the ranks apart."""
        unaligned = np.ndarray((len(self.data) - LABEL + 1,), np.uint64, self.data.data, strides=(1,))
        return np.asarray(unaligned[np.minimum(starts, len(unaligned) - 1)])

    def line(self, at: int) -> tuple[int, int, bytes, bytes]:
        """(offset in the file, newlines of this chunk before it, text, line above) of the line around a place."""
        index = int(np.searchsorted(self.ends, at))
        start = int(self.ends[index - 1]) + 1 if index else 0
        end = int(self.ends[index]) if index < len(self.ends) else len(self.data)
        number = max(index - self.skipped, 0)
        begin = max(start, at - _LONGEST // 2) if end - start > _LONGEST else start
        raw = self.data[begin : min(end, begin + _LONGEST)].tobytes()
        above = self.data[max(0, start - 200) : max(0, start - 1)].tobytes().rpartition(b"\n")[2]
        return self.base + begin, number, raw, above


def _last_of_each(keys: NDArray[np.uint64]) -> list[int]:
    """Positions of the last of each distinct key, in order."""
    slots = ((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(52)).astype(np.int64)
    last = np.full(1 << 12, -1, np.int64)
    last[slots] = np.arange(len(keys))
    if np.array_equal(keys[last[slots]], keys):  # no two keys share a slot
        return sorted(last[last >= 0].tolist())
    _, backwards = np.unique(keys[::-1], return_index=True)
    return sorted((len(keys) - 1 - backwards).tolist())
