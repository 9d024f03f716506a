"""The chunks of a metric as samples: by numpy, or by machine code where numba is installed and they are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from mmap import mmap

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from trackwalker.telemetry.direct.unxor import Place, decode, ranges, stacked
from trackwalker.telemetry.xor import Floats, Ints

_BESIDE = 2
_AT_ONCE = 4096  # chunks: what is worked on stays in the processor's cache
# From here on the import of numba (0.5 s) and, once for each user, the compilation (5 s) are worth it: 25 M samples.
_LEAST_KEPT = 150_000_000  # bytes of decoded samples; of a larger database as many as its chunks have
WORTH_COMPILING = 40_000_000  # bytes of chunks


@dataclass(frozen=True)
class Chunks:
    """Chunks in the order of series and time: the pieces of files that hold them, and which of the chunks those are."""

    pieces: list[tuple[Place, Ints]]
    counts: Ints  # samples of each
    series: Ints  # of each, the number of its series
    spans: Ints  # (chunks, 2): first and last time
    all_series: int

    @property
    def sizes(self) -> Ints:
        """How many samples each series has."""
        return np.bincount(self.series, weights=self.counts, minlength=self.all_series).astype(np.int64)


@dataclass(frozen=True)
class Decoded:
    """What the chunks hold."""

    values: Floats  # and one number more
    begins: Ints  # of each series in `values`
    times: Ints  # distinct rows, filled up behind their end
    of_times: Ints  # of each chunk, its row


@dataclass(frozen=True)
class Means:
    """By what a database is read: both ways give the same numbers."""

    decode: Callable[[Chunks], Decoded]
    checksums: Callable[[mmap, Ints, Ints], NDArray[np.uint32]]  # CRC-32C of a file's stretches: begins, ends
    kept_bytes: int  # of decoded samples: what is decoded quickly need not be kept


def means_for(size: int) -> Means:
    """Those for a database whose chunks have so many bytes."""
    if size >= WORTH_COMPILING:
        try:
            from trackwalker.telemetry.direct import compiled
        except Exception:  # not installed, no folder to keep the result in, a spoilt one there: numpy can do it too
            return BY_NUMPY
        return Means(compiled.by_compiler, compiled.checksums, kept_bytes=max(_LEAST_KEPT, size))
    return BY_NUMPY


def _checksums(raw: mmap, starts: Ints, ends: Ints) -> NDArray[np.uint32]:
    value = google_crc32c.value
    found = [value(raw[begin:end]) for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array(found, np.uint32)


def by_numpy(chunks: Chunks) -> Decoded:
    """Thousands of chunks side by side, position after position."""
    pieces = [cut for place, which in chunks.pieces for cut in _cut(*_by_time(place, which, chunks.spans))]
    begins = np.cumsum(chunks.counts) - chunks.counts
    values, of_times = np.zeros(int(chunks.counts.sum()) + 1), np.zeros(len(chunks.counts), np.int64)
    rows, total = [], 0
    for which, times, whose in _decoded(pieces, values, begins):
        of_times[which] = total + whose
        rows.append(times)
        total += len(times)
    sizes = chunks.sizes
    return Decoded(*_compact(values, np.cumsum(sizes) - sizes, sizes), stacked(rows), of_times)


BY_NUMPY = Means(by_numpy, _checksums, kept_bytes=350_000_000)


def _by_time(place: Place, which: Ints, spans: Ints) -> tuple[Place, Ints]:
    """What was scraped together is decoded together, and shares its times."""
    order = np.lexsort((spans[which, 1], spans[which, 0]))
    return Place(place.data, place.starts[order], place.lengths[order]), which[order]


def _compact(values: Floats, begins: Ints, counts: Ints) -> tuple[Floats, Ints]:
    """Values and where each series begins; of those that never moved, equal ones share one stretch of equal numbers."""
    bits = values[:-1].view(np.uint64)
    some = np.flatnonzero(counts)
    if not len(some):
        return values, begins
    low, high = np.minimum.reduceat(bits, begins[some]), np.maximum.reduceat(bits, begins[some])
    still, moving = some[low == high], some[low != high]
    if 2 * int(counts[still].sum()) < len(bits):
        return values, begins
    numbers, which = np.unique(low[low == high], return_inverse=True)
    longest = np.zeros(len(numbers), np.int64)
    np.maximum.at(longest, which, counts[still])
    kept = values[ranges(begins[moving], counts[moving])]
    out = np.zeros_like(begins)
    out[moving] = np.cumsum(counts[moving]) - counts[moving]
    out[still] = len(kept) + (np.cumsum(longest) - longest)[which]
    return np.concatenate([kept, np.repeat(numbers, longest).view(np.float64), [0.0]]), out


def _cut(place: Place, which: Ints) -> Iterator[tuple[Place, Ints]]:
    for at in range(0, len(which), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        yield Place(place.data, place.starts[some], place.lengths[some]), which[some]


def _decoded(pieces: list[tuple[Place, Ints]], values: Floats, begins: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Write the values of chunks; gives which chunks, distinct rows of times, and whose is which."""

    def work(batch: list[tuple[Place, Ints]]) -> tuple[Ints, Ints, Ints]:
        which = np.concatenate([w for _, w in batch])
        return which, *decode([place for place, _ in batch], values, begins[which])

    batches: list[list[tuple[Place, Ints]]] = []
    room = 0
    for piece in pieces:  # many small ones together: a step costs as much for ten chunks as for a thousand
        if len(piece[1]) > room:
            batches.append([])
            room = _AT_ONCE
        batches[-1].append(piece)
        room -= len(piece[1])
    if len(batches) == 1:
        yield work(batches[0])
        return
    with ThreadPoolExecutor(_BESIDE, "trackwalker-decode") as pool:
        for at in range(0, len(batches), _BESIDE):  # not all in memory at once; numpy works beside itself
            yield from pool.map(work, batches[at : at + _BESIDE])
