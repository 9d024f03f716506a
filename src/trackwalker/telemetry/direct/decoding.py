"""The chunks of a metric as samples: by numpy, or by machine code where numba is installed and they are many."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha1
from mmap import mmap
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from trackwalker.telemetry.direct.unxor import (
    LONGEST,
    Bytes,
    DamagedError,
    Place,
    decode,
    ranges,
    stacked,
    uvarints,
    varints,
)
from trackwalker.telemetry.xor import Floats, Ints, Words

_BESIDE = 2
_MOST_BESIDE = 8  # of machine code
_AT_ONCE = 4096  # chunks: what is worked on stays in the processor's cache
# From here on the import of numba (0.5 s) and, once for each user, the compilation (5 s) are worth it: 25 M samples.
_LEAST_KEPT = 150_000_000  # bytes of decoded samples; of a larger database as many as its chunks have
_MOST_LABELS = 64
_MOST_CHUNKS = 1 << 20  # of a series in a block
_BEHIND = 16  # bytes of an index behind its series, at least
KERNEL = "trackwalker.telemetry.direct.kernel"
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
    # Entries of an index, begins and ends, of so many symbols: names, labels, chunks (`index.Entries`).
    series: Callable[[Bytes, Ints, Ints, int], tuple[Ints, Ints, Ints]]
    kept_bytes: int  # of decoded samples: what is decoded quickly need not be kept


def means_for(size: int) -> Means:
    """Those for a database whose chunks have so many bytes."""
    if size >= WORTH_COMPILING or KERNEL in sys.modules:
        try:
            from trackwalker.telemetry.direct import kernel  # noqa: F401 - here, as numba takes half a second
        except Exception:  # not installed, no folder to keep the result in, a spoilt one there: numpy can do it too
            return BY_NUMPY
        return Means(by_compiler, compiled_checksums, compiled_series, kept_bytes=max(_LEAST_KEPT, size))
    return BY_NUMPY


def is_compiled() -> bool:
    """Whether an earlier start left the machine code: then only numba has to be imported, a second of CPU time."""
    source = Path(__file__).with_name("kernel.py")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trackwalker" / "compiled"
    own = f"{source.parent.name}_{sha1(str(source.parent).encode()).hexdigest()}"  # noqa: S324 - as numba names it
    try:
        held = (Path(os.environ.get("NUMBA_CACHE_DIR") or cache) / own).glob("kernel._decode-*.nbi")
        return any(index.stat().st_mtime >= source.stat().st_mtime for index in held)
    except (OSError, RuntimeError):
        return False


def compile_ahead() -> None:
    """What `means_for` would compile for the first large database of a user: seconds, kept on disk."""
    means_for(WORTH_COMPILING)


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


def _series(data: Bytes, starts: Ints, ends: Ints, symbols: int) -> tuple[Ints, Ints, Ints]:
    """All entries side by side, number after number."""
    count, at = uvarints(data, starts)
    if count.max(initial=0) > _MOST_LABELS:
        raise DamagedError("index: more labels than a series has")
    pairs: list[tuple[Ints, Ints, Ints]] = []  # series, name, value
    for k in range(int(count.max(initial=0))):
        some = np.flatnonzero(count > k)
        name, at[some] = uvarints(data, at[some])
        value, at[some] = uvarints(data, at[some])
        pairs.append((some, name.astype(np.int64), value.astype(np.int64)))
    names, labels = _table(len(starts), pairs, symbols)
    chunks = _chunks(data, at)
    if (at > ends).any():
        raise DamagedError("index: a series that goes on behind its end")
    return names, labels, chunks


def _table(rows: int, pairs: list[tuple[Ints, Ints, Ints]], symbols: int) -> tuple[Ints, Ints]:
    used = np.unique(np.concatenate([name for _, name, _ in pairs])) if pairs else np.zeros(0, np.int64)
    if len(used) and max(used[-1], *(value.max() for _, _, value in pairs)) >= symbols:
        raise DamagedError("index: a symbol that is not there")
    labels = np.full((rows, len(used)), -1, np.int64)
    for some, name, value in pairs:
        labels[some, np.searchsorted(used, name)] = value
    return used, labels


def _chunks(data: Bytes, at: Ints) -> Ints:
    """The chunks of series whose list begins at these places, in order; `at` is moved behind it."""
    told, at[:] = uvarints(data, at)
    if told.max(initial=0) > _MOST_CHUNKS:
        raise DamagedError("index: more chunks than a series has")
    count = told.astype(np.int64)
    begin = np.cumsum(count) - count
    out = np.empty((int(count.sum()), 4), np.int64)
    last = ref = np.zeros(len(at), np.int64)
    for k in range(int(count.max(initial=0))):
        some = np.flatnonzero(count > k)
        here = at[some]
        if k == 0:
            first, here = varints(data, here)
            last, ref = last.copy(), ref.copy()
        else:
            gap, here = uvarints(data, here)
            first = last[some] + gap.view(np.int64)
        span, here = uvarints(data, here)
        last[some] = first + span.view(np.int64)
        if k == 0:
            place, here = uvarints(data, here)
            ref[some] = place.view(np.int64)
        else:
            by, here = varints(data, here)
            ref[some] += by
        at[some] = here
        out[begin[some] + k] = np.stack([some, first, last[some], ref[some]], axis=1)
    return out


BY_NUMPY = Means(by_numpy, _checksums, _series, kept_bytes=350_000_000)


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


def compiled_checksums(raw: mmap, starts: Ints, ends: Ints) -> NDArray[np.uint32]:
    """CRC-32C of stretches of a file, by machine code."""
    from trackwalker.telemetry.direct import kernel

    out = np.zeros(len(starts), np.uint32)
    kernel.checksums(np.frombuffer(raw, np.uint8), starts, ends, out)
    return out


def compiled_series(data: Bytes, starts: Ints, ends: Ints, symbols: int) -> tuple[Ints, Ints, Ints]:
    """Entries of an index, by machine code."""
    from trackwalker.telemetry.direct import kernel

    columns, counts, none = np.zeros(symbols, np.int64), np.zeros(len(starts), np.int64), np.zeros((0, 0), np.int64)
    told, most = (np.ascontiguousarray(starts), np.ascontiguousarray(ends)), np.uint64(_MOST_LABELS)
    outside = int(ends.max(initial=0)) + _BEHIND > len(data) or starts.min(initial=0) < 0
    if outside or kernel.series(data, *told, most, columns, none, counts, none) < 0:
        raise DamagedError("index: series that are none")
    used = np.flatnonzero(columns)
    columns[used] = np.arange(len(used))
    labels, chunks = np.full((len(starts), len(used)), -1, np.int64), np.empty((int(counts.sum()), 4), np.int64)
    if kernel.series(data, *told, most, columns, labels, np.cumsum(counts) - counts, chunks) < 0:
        raise DamagedError("index: series that are none")
    return used, labels, chunks


def by_compiler(chunks: Chunks) -> Decoded:
    """A chunk after the other by machine code (needs numba), in all cores, straight to where the samples stay.

    A series that never moved is told by its chunks' heads: its samples are never written, equal ones share a stretch.
    """
    from trackwalker.telemetry.direct import kernel

    bits, moves = _looked_at(chunks)
    values, begins, places = _laid_out(chunks, bits, moves)
    most = int(chunks.counts.max(initial=1))
    of_times = np.zeros(len(chunks.counts), np.int64)

    def work(batch: tuple[Place, Ints]) -> tuple[Ints, Ints, Words]:
        place, which = batch
        rows, mixes = np.empty((len(which), most), np.int64), np.empty(len(which), np.uint64)
        whose = np.empty(len(which), np.int64)
        used = kernel.decode(
            place.data, place.starts, place.lengths, chunks.counts[which], int(place.lengths.max()),
            values.view(np.uint64), places[which], rows, mixes, whose,
        )  # fmt: skip
        if used < 0:
            raise DamagedError("a chunk that is none, or ends elsewhere")
        of_times[which] = whose
        return which, rows[:used].copy(), mixes[:used].copy()

    batches = [cut for piece in chunks.pieces for cut in _cut(*piece)]
    beside = min(_MOST_BESIDE, len(os.sched_getaffinity(0)), len(batches))
    if beside > 1:
        with ThreadPoolExecutor(beside, "trackwalker-decode") as pool:
            found = list(pool.map(work, batches))
    else:
        found = [work(batch) for batch in batches]
    return Decoded(values, begins, *_once(found, of_times, most))


def _looked_at(chunks: Chunks) -> tuple[Words, NDArray[np.bool_]]:
    """Of each chunk the first value, and whether anything in it moves."""
    from trackwalker.telemetry.direct import kernel

    bits, moves = np.zeros(len(chunks.counts), np.uint64), np.zeros(len(chunks.counts), bool)
    for place, which in chunks.pieces:
        ends = place.starts + place.lengths
        if not len(which):
            continue
        if place.lengths.min() < 3 or place.lengths.max() > LONGEST or place.starts.min() < 0:
            raise DamagedError("a chunk of an impossible length")
        if ends.max() > len(place.data):
            raise DamagedError("a chunk of an impossible length")
        first, moving = np.empty(len(which), np.uint64), np.empty(len(which), bool)
        kernel.look(place.data, place.starts, place.lengths, first, moving)
        bits[which], moves[which] = first, moving
    return bits, moves


def _laid_out(chunks: Chunks, bits: Words, moves: NDArray[np.bool_]) -> tuple[Floats, Ints, Ints]:
    """Room for all values with those that never moved in it; where each series begins; where each chunk's values go."""
    series, sizes = chunks.series, chunks.sizes
    first = np.searchsorted(series, np.arange(chunks.all_series))  # chunk of each series
    moves = moves | (bits != bits[first[series]])
    moving = np.bincount(series[moves], minlength=chunks.all_series) > 0
    written = np.where(moving, sizes, 0)
    begins = np.cumsum(written) - written
    total = int(written.sum())
    still = np.flatnonzero(~moving & (sizes > 0))
    numbers, which = np.unique(bits[first[still]], return_inverse=True)
    longest = np.zeros(len(numbers), np.int64)
    np.maximum.at(longest, which, sizes[still])
    begins[still] = total + (np.cumsum(longest) - longest)[which]
    values = np.empty(total + int(longest.sum()) + 1)
    values[total:-1] = np.repeat(numbers, longest).view(np.float64)
    values[-1] = 0.0
    before = np.cumsum(chunks.counts) - chunks.counts
    places = begins[series] + before - before[first[series]]
    return values, begins, np.where(moving[series], places, -1)


def _once(found: list[tuple[Ints, Ints, Words]], of_times: Ints, most: int) -> tuple[Ints, Ints]:
    """The distinct rows of times of all batches, and each chunk's."""
    total = 0
    for which, rows, _ in found:
        of_times[which] += total
        total += len(rows)
    table = np.concatenate([np.zeros((0, most), np.int64), *(rows for _, rows, _ in found)])
    mixes = np.concatenate([np.zeros(0, np.uint64), *(mixes for *_, mixes in found)])
    from trackwalker.telemetry.direct import kernel

    one, back = np.empty(total, np.int64), np.empty(total, np.int64)
    used = kernel.once(table, mixes, one, back)
    return table[one[:used]], back[of_times]
