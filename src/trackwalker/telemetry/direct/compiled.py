"""Chunks decoded by machine code (`kernel.py`, needs numba), straight to where their samples stay.

A series that never moved is told by its chunks' heads: its samples are never written, equal ones share a stretch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap

import numpy as np
from numpy.typing import NDArray

from trackwalker.telemetry.direct import kernel
from trackwalker.telemetry.direct.decoding import Chunks, Decoded
from trackwalker.telemetry.direct.unxor import LONGEST, DamagedError, Place
from trackwalker.telemetry.xor import Floats, Ints, Words

_AT_ONCE = 4096  # chunks
_MOST_BESIDE = 8


def by_compiler(chunks: Chunks) -> Decoded:
    """A chunk after the other, as many at once as there are cores."""
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

    batches = list(_batches(chunks.pieces))
    beside = min(_MOST_BESIDE, len(os.sched_getaffinity(0)), len(batches))
    if beside > 1:
        with ThreadPoolExecutor(beside, "trackwalker-decode") as pool:
            found = list(pool.map(work, batches))
    else:
        found = [work(batch) for batch in batches]
    return Decoded(values, begins, *_once(found, of_times, most))


def checksums(raw: mmap, starts: Ints, ends: Ints) -> NDArray[np.uint32]:
    """CRC-32C of stretches of a file."""
    out = np.zeros(len(starts), np.uint32)
    kernel.checksums(np.frombuffer(raw, np.uint8), starts, ends, out)
    return out


def _batches(pieces: list[tuple[Place, Ints]]) -> Iterator[tuple[Place, Ints]]:
    for place, which in pieces:
        for at in range(0, len(which), _AT_ONCE):
            some = slice(at, at + _AT_ONCE)
            yield Place(place.data, place.starts[some], place.lengths[some]), which[some]


def _looked_at(chunks: Chunks) -> tuple[Words, NDArray[np.bool_]]:
    """Of each chunk the first value, and whether anything in it moves."""
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
    one, back = np.empty(total, np.int64), np.empty(total, np.int64)
    used = kernel.once(table, mixes, one, back)
    return table[one[:used]], back[of_times]
