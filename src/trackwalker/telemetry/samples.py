"""The blocks of a database as arrays: all series of a metric, decoded side by side and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trackwalker.telemetry.index import BlockIndex, Entries
from trackwalker.telemetry.unxor import Decoded, decode, joined
from trackwalker.telemetry.xor import Floats, Ints

KEPT_BYTES = 1_000_000_000  # of decoded samples


class UnsupportedError(ValueError):
    """What only Prometheus itself can answer."""


@dataclass(frozen=True)
class Samples:
    """Samples of several series, one series after the other: series i has [starts[i], starts[i + 1])."""

    starts: Ints
    times: Ints  # milliseconds
    values: Floats

    @property
    def series(self) -> int:
        """How many series there are, those without a sample too."""
        return len(self.starts) - 1


class Metric:
    """One metric: its series' labels, their chunks in the order of series and time, and what was decoded of them."""

    def __init__(self, names: tuple[str, ...], labels: Ints, chunks: Ints) -> None:
        self.names, self.labels = names, labels
        self._chunks = chunks  # (chunks, 5): series, first time, last time, reference, block
        self._decoded: Decoded | None = None
        self._slot = np.full(len(chunks), -1, np.int64)  # where a chunk stands in what was decoded
        self.lock = threading.Lock()

    @property
    def last(self) -> int:
        """The end of its latest chunk."""
        return int(self._chunks[:, 2].max(initial=0))

    @property
    def bytes(self) -> int:
        """Memory it holds."""
        found = self._decoded
        return self._chunks.nbytes + self.labels.nbytes + (found.values.nbytes + found.times.nbytes if found else 0)

    def between(self, first: int, last: int, rows: Ints, blocks: Sequence[BlockIndex]) -> Samples:
        """The samples of some of the series from one millisecond to another, both included."""
        wanted = np.zeros(len(self.labels) + 1, bool)
        wanted[rows] = True
        _, begins, ends, _, _ = self._chunks.T
        some = np.flatnonzero((begins <= last) & (ends >= first) & wanted[self._chunks[:, 0]])
        with self.lock:
            self._read(some[self._slot[some] < 0], blocks)
            slots, found = self._slot[some], self._decoded
        if found is None or not len(some):
            return Samples(np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int64), np.zeros(0))
        return _cut(found, slots, self._chunks[some, 0], first, last, rows)

    def _read(self, lacking: Ints, blocks: Sequence[BlockIndex]) -> None:
        if not len(lacking):
            return
        parts, order = [] if self._decoded is None else [self._decoded], []
        size = len(parts[0].counts) if parts else 0
        for number in np.unique(self._chunks[lacking, 4]).tolist():
            mine = lacking[self._chunks[lacking, 4] == number]
            for file, which, at, lengths in blocks[number].places(self._chunks[mine, 3]):
                parts.append(decode(file.data, at, lengths))
                order.append(mine[which])
        read = np.concatenate(order)
        self._decoded = joined(parts)
        self._slot[read] = size + np.arange(len(read))


def _cut(found: Decoded, slots: Ints, series: Ints, first: int, last: int, rows: Ints) -> Samples:
    """Chunks as samples one behind the other, without those outside of a stretch of time."""
    wide = int(found.counts[slots].max())
    times = found.times[found.of_times[slots], :wide]
    inside = (np.arange(wide) < found.counts[slots][:, None]) & (times >= first) & (times <= last)
    per_chunk = inside.sum(axis=1)
    place = np.zeros(int(rows.max()) + 1, np.int64)
    place[rows] = np.arange(len(rows))
    counts = np.bincount(place[series], weights=per_chunk, minlength=len(rows)).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Samples(starts, times[inside], found.values[slots, :wide][inside])


class Blocks:
    """The open blocks of a database; label values are numbers that all blocks share."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._naming = threading.Lock()
        self._ranks, self._told = np.zeros(0, np.int64), 0
        self._blocks = [BlockIndex(folder) for folder in sorted(folders)]
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

    def metric(self, name: str) -> Metric:
        """A metric of the database; the one that was used longest ago makes room."""
        with self._lock:
            if name in self._open:
                self._open.move_to_end(name)
            else:
                self._open[name] = self._read(name)
            while len(self._open) > 1 and sum(m.bytes for m in self._open.values()) > KEPT_BYTES:
                self._open.popitem(last=False)
            return self._open[name]

    def between(self, metric: Metric, first: int, last: int, rows: Ints) -> Samples:
        """Samples of a metric's series in a stretch of time."""
        return metric.between(first, last, rows, self._blocks)

    def _read(self, name: str) -> Metric:
        found = [(i, e) for i, block in enumerate(self._blocks) if (e := block.entries(name)) is not None]
        names = tuple(sorted({n for _, e in found for n in e.names}))
        tables = [self._labels(i, e, names) for i, e in found]
        if len(found) == 1:
            labels, which = tables[0], [np.arange(len(tables[0]))]
        else:
            labels, back = np.unique(np.concatenate(tables), axis=0, return_inverse=True)
            which = np.split(back.ravel(), np.cumsum([len(t) for t in tables])[:-1])
        chunks = np.concatenate(
            [
                np.column_stack([series[e.chunks[:, 0]], e.chunks[:, 1:], np.full(len(e.chunks), i)])
                for (i, e), series in zip(found, which, strict=True)
            ]
        )
        chunks = chunks[np.lexsort((chunks[:, 1], chunks[:, 0]))]
        same = chunks[1:, 0] == chunks[:-1, 0]
        if (same & (chunks[1:, 1] <= chunks[:-1, 2])).any():
            raise UnsupportedError(f"{name}: chunks that overlap")
        order = self.order(names, labels)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        chunks[:, 0] = place[chunks[:, 0]]
        return Metric(names, labels[order], chunks[np.lexsort((chunks[:, 1], chunks[:, 0]))])

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
