"""The blocks of a database as arrays: all series of a metric, decoded side by side and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackwalker.telemetry.direct.decoding import Chunks, Decoded, Means, means_for
from trackwalker.telemetry.direct.index import BlockIndex, Entries
from trackwalker.telemetry.direct.unxor import Place, counts_of, ranges
from trackwalker.telemetry.xor import Floats, Ints

_BESIDE = 2  # indexes read at a time
_FEW = 4  # a part of that size is copied
_PARTS = 3
_RECENT = 48  # results: of ten thousand series 25 MB


class UnsupportedError(ValueError):
    """What only Prometheus itself can answer."""


@dataclass(frozen=True)
class Samples:
    """Samples of several series, in the order of time; series that are scraped together share their schedule."""

    values: Floats  # and one number more, so that every place is inside
    begins: Ints  # of each series in `values`
    times: Ints  # milliseconds, one schedule after the other
    starts: Ints  # of each schedule in `times`, and the end of the last one
    schedule: Ints  # of each series
    known: dict[str, Any] = field(default_factory=dict, compare=False)  # of all values, found out once

    @property
    def counts(self) -> Ints:
        """How many samples each series has."""
        return np.diff(self.starts)[self.schedule]

    @property
    def bytes(self) -> int:
        """Memory it holds."""
        found = sum(a.nbytes for a in list(self.known.values()) if isinstance(a, np.ndarray))
        return self.values.nbytes + self.times.nbytes + found

    def of(self, rows: Ints) -> Samples:
        """Some of the series; of a few, with nothing of the others."""
        begins, schedule = self.begins[rows], self.schedule[rows]
        if _FEW * len(rows) >= len(self.begins):
            self.known.setdefault("begins", self.begins)
            return replace(self, begins=begins, schedule=schedule)
        counts = self.counts[rows]
        kept, schedule = np.unique(schedule, return_inverse=True)
        sizes = np.diff(self.starts)[kept]
        return Samples(
            np.append(self.values[ranges(begins, counts)], 0.0),
            np.cumsum(counts) - counts,
            self.times[ranges(self.starts[kept], sizes)],
            np.concatenate([[0], np.cumsum(sizes)]),
            schedule,
        )


def grouped(labels: Ints) -> tuple[Ints, Ints]:
    """Distinct rows of labels, and which of them each row is."""
    if labels.shape[1] == 0:
        return labels[:1], np.zeros(len(labels), np.intp)
    key = labels[:, 0]
    for column in labels[:, 1:].T:  # numbers of numbers: sorting them is much faster than sorting rows
        _, key = np.unique(key, return_inverse=True)
        key = key * (int(column.max(initial=0)) + 1) + column
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return labels[first], which


@dataclass(frozen=True)
class Vector:
    """Series with values[series, moment]; labels are numbers, 0 for one that a series has not."""

    names: tuple[str, ...]
    labels: Ints
    values: Floats
    there: NDArray[np.bool_]  # a value may be there and be no number

    def column(self, name: str) -> Ints:
        """A label of each series."""
        return self.labels[:, self.names.index(name)] if name in self.names else np.zeros(len(self.labels), np.int64)

    def only(self, names: tuple[str, ...]) -> Ints:
        """Some of the labels, in this order."""
        return np.column_stack([self.column(n) for n in names]) if names else np.zeros((len(self.labels), 0), np.int64)

    def without(self, *gone: str) -> Vector:
        """Without some labels."""
        names = tuple(n for n in self.names if n not in gone)
        return self if names == self.names else replace(self, names=names, labels=self.only(names))


def vectors_as_one(parts: list[Vector], steps: int) -> Vector:
    """The series of several vectors."""
    if len(parts) == 1:
        return parts[0]
    names = tuple(sorted({n for part in parts for n in part.names}))
    if not parts:
        return Vector((), np.zeros((0, 0), np.int64), np.zeros((0, steps)), np.zeros((0, steps), bool))
    return Vector(
        names,
        np.concatenate([part.only(names) for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.there for part in parts]),
    )


class Metric:
    """One metric: its series' labels, their chunks in the order of series and time, and what was decoded of them.

    A question about a moment needs one chunk of each series; once such questions would have read half of everything,
    everything is decoded and kept.
    """

    def __init__(
        self, names: tuple[str, ...], labels: Ints, chunks: Ints, blocks: Sequence[BlockIndex], means: Means
    ) -> None:
        self.names, self.labels, self._means = names, labels, means
        self._chunks, self._blocks = chunks, blocks  # (chunks, 5): series, first time, last time, reference, block
        self._whole: Samples | None = None
        self._parts: dict[bytes, Samples] = {}  # the last few of single moments, by their chunks
        self._spent = 0  # chunks that were decoded for single moments
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Memory it holds."""
        held = [*([self._whole] if self._whole is not None else []), *self._parts.values()]
        return self._chunks.nbytes + self.labels.nbytes + sum(h.bytes for h in held)

    def between(self, first: int, last: int, rows: Ints) -> Samples:
        """The samples of some of the series from one millisecond to another, perhaps with others around them."""
        with self._lock:
            if self._whole is None:
                wanted = np.zeros(len(self.labels), bool)
                wanted[rows] = True
                near = (self._chunks[:, 1] <= last) & (self._chunks[:, 2] >= first)
                some = np.flatnonzero(near & wanted[self._chunks[:, 0]])
                if 2 * (self._spent + len(some)) < len(self._chunks):
                    return self._part(some, rows)
                self._whole = self._decoded(np.arange(len(self._chunks)), np.arange(len(self.labels)))
                self._parts = {}
        return self._whole.of(rows)

    def _part(self, some: Ints, rows: Ints) -> Samples:
        key = some.tobytes() + rows.tobytes()
        if key not in self._parts:
            self._spent += len(some)
            while len(self._parts) >= _PARTS:
                self._parts.pop(next(iter(self._parts)))
            self._parts[key] = self._decoded(some, rows)
        return self._parts[key]

    def _decoded(self, some: Ints, rows: Ints) -> Samples:
        """Chunks (in the order of series and time) as samples of all these series."""
        chunks = self._found(some, rows)
        decoded = self._means.decode(chunks)
        sizes = chunks.sizes
        (first, many), schedule = _schedules(chunks.series, decoded.of_times, len(rows))
        times = _schedule_times(decoded, chunks.counts, ranges(first, many))
        per_schedule = np.zeros(len(first), np.int64)
        per_schedule[schedule] = sizes
        starts = np.concatenate([[0], np.cumsum(per_schedule)])
        return Samples(decoded.values, decoded.begins, times, starts, schedule)

    def _found(self, some: Ints, rows: Ints) -> Chunks:
        """Where these chunks lie."""
        told = self._chunks[some]
        counts = np.zeros(len(some), np.int64)
        pieces: list[tuple[Place, Ints]] = []
        for number in np.unique(told[:, 4]).tolist():
            mine = np.flatnonzero(told[:, 4] == number)
            for place, which in self._blocks[number].places(told[mine, 3]):
                counts[mine[which]] = counts_of(place.data, place.starts)
                pieces.append((place, mine[which]))
        return Chunks(pieces, counts, np.searchsorted(rows, told[:, 0]), told[:, 1:3], len(rows))


def _schedule_times(decoded: Decoded, counts: Ints, chunks: Ints) -> Ints:
    """The times of some chunks, one behind the other."""
    inside = np.arange(decoded.times.shape[1]) < counts[chunks, None]
    return decoded.times[decoded.of_times[chunks]][inside]


def _schedules(series: Ints, of_times: Ints, count: int) -> tuple[tuple[Ints, Ints], Ints]:
    """Series whose chunks have the same times: of each such group a member's first chunk and number of chunks; and
    each series' group."""
    chunks = np.bincount(series, minlength=count)
    begins = np.cumsum(chunks) - chunks
    place = np.arange(len(series)) - begins[series]
    mixed = (of_times.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * (2 * place + 1).astype(np.uint64)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
    key = total[begins + chunks] - total[begins]
    _, member, group = np.unique(key, return_index=True, return_inverse=True)
    alike = np.array_equal(chunks[member][group], chunks)
    if not alike or not np.array_equal(of_times[begins[member][group][series] + place], of_times):
        member = group = np.arange(count)  # two keys fell together: each for itself
    return (begins[member], chunks[member]), group


class Recent:
    """The last few results, by what they are the result of."""

    def __init__(self, most: int = _RECENT) -> None:
        self._most = most
        self._found: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """A result, if it is still here."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def keep(self, key: Any, result: Any) -> None:
        """Keep a result; the one that was used longest ago makes room."""
        with self._lock:
            self._found[key] = result
            while len(self._found) > self._most:
                self._found.popitem(last=False)


class Blocks:
    """The open blocks of a database; label values are numbers that all blocks share."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._naming = threading.Lock()
        self._ranks, self._told = np.zeros(0, np.int64), 0
        folders = sorted(folders)
        self._means = means_for(sum(f.stat().st_size for folder in folders for f in (folder / "chunks").iterdir()))
        with ThreadPoolExecutor(_BESIDE, "trackwalker-index") as pool:
            self._blocks = list(pool.map(lambda folder: BlockIndex(folder, self._means), folders))
        self.recent, self.last = Recent(), Recent(1)  # at one moment, and over time
        self.texts: list[str] = [""]
        self._codes: dict[str, int] = {"": 0}
        self._shared = [np.array([self.code(s) for s in block.symbols] + [0]) for block in self._blocks]
        self.metrics = frozenset(name for block in self._blocks for name in block.metrics)
        self._open: OrderedDict[str, Metric] = OrderedDict()
        self._lock = threading.Lock()

    def code(self, text: str) -> int:
        """The number of a label's value."""
        if text not in self._codes:
            with self._naming:
                if text not in self._codes:
                    self.texts.append(text)
                    self._codes[text] = len(self.texts) - 1
        return self._codes[text]

    def _ranks_of_texts(self) -> Ints:
        """By number, a label value's place among all of them in the order of texts."""
        texts = list(self.texts)
        if len(texts) > len(self._ranks):
            order = sorted(range(len(texts)), key=texts.__getitem__)
            ranks = np.empty(len(texts), np.int64)
            ranks[order] = np.arange(len(texts))
            self._ranks = ranks
        return self._ranks

    def read_bytes(self) -> int:
        """How many bytes of chunks were decoded since this was asked last."""
        with self._naming:
            total = sum(block.bytes_read for block in self._blocks)
            new, self._told = total - self._told, total
            return new

    def ends(self) -> dict[str, int]:
        """By metric, the end of its latest chunk."""
        out: dict[str, int] = {}
        for block in self._blocks:
            for name, end in block.ends().items():
                out[name] = max(out.get(name, 0), end)
        return out

    def metric(self, name: str) -> Metric:
        """A metric of the database; the one that was used longest ago makes room."""
        with self._lock:
            if name in self._open:
                self._open.move_to_end(name)
            else:
                while self._open and sum(m.bytes for m in self._open.values()) > self._means.kept_bytes:
                    self._open.popitem(last=False)
                self._open[name] = self._read(name)
            return self._open[name]

    def _read(self, name: str) -> Metric:
        found = [(i, e) for i, block in enumerate(self._blocks) if (e := block.entries(name)) is not None]
        names = tuple(sorted({n for _, e in found for n in e.names}))
        tables = [self._labels(i, e, names) for i, e in found]
        if len(found) == 1:
            labels, which = tables[0], [np.arange(len(tables[0]))]
        else:
            labels, back = grouped(np.concatenate(tables))
            which = np.split(back, np.cumsum([len(t) for t in tables])[:-1])
        chunks = np.concatenate(
            [
                np.column_stack([series[e.chunks[:, 0]], e.chunks[:, 1:], np.full(len(e.chunks), i)])
                for (i, e), series in zip(found, which, strict=True)
            ]
        )
        order = self.order(names, labels)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        chunks[:, 0] = place[chunks[:, 0]]
        chunks = chunks[np.lexsort((chunks[:, 1], chunks[:, 0]))]
        same = chunks[1:, 0] == chunks[:-1, 0]
        if (same & (chunks[1:, 1] <= chunks[:-1, 2])).any():
            raise UnsupportedError(f"{name}: chunks that overlap")
        return Metric(names, labels[order], chunks, self._blocks, self._means)

    def order(self, names: tuple[str, ...], labels: Ints) -> Ints:
        """Rows of labels in the order that Prometheus keeps series in: by label after label, as texts."""
        columns = sorted(range(len(names)), key=names.__getitem__)
        if not columns:
            return np.arange(len(labels))
        if (labels > 0).all():
            ranks = self._ranks_of_texts()
            return np.lexsort(tuple(ranks[labels[:, i]] for i in reversed(columns)))
        rows = labels[:, columns].tolist()  # where one lacks a label, its next one is compared
        texts = [[(names[c], self.texts[v]) for c, v in zip(columns, row, strict=True) if v] for row in rows]
        return np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int64)

    def _labels(self, block: int, entries: Entries, names: tuple[str, ...]) -> Ints:
        """A block's labels in the shared numbers, 0 where a series lacks one."""
        out = np.zeros((len(entries.labels), len(names)), np.int64)
        for column, name in enumerate(entries.names):
            out[:, names.index(name)] = self._shared[block][entries.labels[:, column]]
        return out
