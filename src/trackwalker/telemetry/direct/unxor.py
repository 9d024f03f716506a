"""Prometheus' XOR chunks, decoded for thousands of chunks at once: `xor.py` the other way round.

One position after the other over all chunks together, at numpy's speed. Nearly all time goes to values that changed; a
chunk whose scrapes were regular and whose value stayed has no bit set, and costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackwalker.telemetry.xor import Floats, Ints, Words

Bytes = NDArray[np.uint8]

_PAD = 16  # bytes that may be looked at behind the last chunk
LONGEST = 1 << 20  # bytes of a chunk
_MOST_SAMPLES = 2048  # of a chunk; Prometheus cuts them at 120
# By the first four bits of a time's field: how many of them are the prefix, and how many bits follow.
_PREFIX = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4] * 2, np.int64)
_WIDTH = np.array([0] * 8 + [14] * 4 + [17] * 2 + [20, 64], np.int64)
_ONE, _LAST, _FRESH, _HALF = np.uint64(1), np.uint64(63), np.uint64(3), np.uint64(32)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MOST_OF = 4  # a part of that size is not picked out: the rest costs less than picking


class DamagedError(ValueError):
    """Bytes that are no chunk, no index, or not what their checksum says."""


@dataclass(frozen=True)
class Place:
    """Chunks in a file: where their data begin (without length, encoding and checksum) and how long they are."""

    data: Bytes
    starts: Ints
    lengths: Ints


def uvarints(data: Bytes, at: Ints) -> tuple[Words, Ints]:
    """The unsigned numbers that begin at these places, and where they end."""
    byte = data[at]
    out = (byte & 0x7F).astype(np.uint64)
    at = at + 1
    more, shift = np.flatnonzero(byte & 0x80), 7
    while len(more):
        if shift > 63:
            raise DamagedError("a number that does not end")
        byte = data[at[more]]
        out[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[more] += 1
        more, shift = more[byte >= 0x80], shift + 7
    return out, at


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The signed numbers that begin at these places, and where they end."""
    raw, at = uvarints(data, at)
    return (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64), at


def ranges(starts: Ints, counts: Ints) -> Ints:
    """The numbers of several stretches, one behind the other."""
    before = np.cumsum(counts) - counts
    out: Ints = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return out


def gather(data: Bytes, starts: Ints, lengths: Ints) -> tuple[Bytes, Ints]:
    """Pieces of a file one behind the other, and where each begins."""
    begins = np.concatenate([[0], np.cumsum(lengths)])
    total = int(begins[-1])
    out = np.zeros(total + _PAD, np.uint8)
    out[:total] = data[ranges(starts, lengths)]
    return out, begins[:-1]


def counts_of(data: Bytes, starts: Ints) -> Ints:
    """How many samples the chunks at these places have."""
    counts = data[starts].astype(np.int64) << 8 | data[starts + 1]
    if counts.min(initial=1) == 0 or counts.max(initial=0) > _MOST_SAMPLES:
        raise DamagedError("a chunk without samples, or with too many to be decoded beside others")
    return counts


def decode(places: Sequence[Place], out: Floats, begins: Ints) -> tuple[Ints, Ints]:
    """Write chunk i's values to `out` from begins[i] on; returns distinct rows of times, and whose is which.

    Series that are scraped together share their times: each distinct row is there once.
    """
    buffers, starts, shift = [], [], 0
    for place in places:
        ends = place.starts + place.lengths
        if place.lengths.min() < 3 or place.lengths.max() > LONGEST or ends.max() > len(place.data):
            raise DamagedError("a chunk of an impossible length")
        buffer, at = gather(place.data, place.starts, place.lengths)
        buffers.append(buffer)
        starts.append(at + shift)
        shift += len(buffer)
    buffers.append(np.zeros(_PAD - shift % 8, np.uint8))  # whole words
    lengths = np.concatenate([place.lengths for place in places])
    try:
        return _decode(np.concatenate(buffers), np.concatenate(starts), lengths, out.view(np.uint64), begins)
    except IndexError:
        raise DamagedError("a chunk that goes on behind its end") from None


def _decode(data: Bytes, starts: Ints, lengths: Ints, out: Words, begins: Ints) -> tuple[Ints, Ints]:
    counts, first, delta, bits, at = _heads(data, starts)
    moves = _any_bit(data, at, starts + lengths)
    still, moving = (~moves).nonzero()[0], moves.nonzero()[0]
    rows, of_times = [], np.zeros(len(starts), np.int64)
    if len(still):  # every scrape was regular and no value changed
        told = np.maximum(2 * counts[still] - 3, 0)  # bits: of the second sample one, of each later one two
        if (at[still] + (told + 7) // 8 != (starts + lengths)[still]).any():
            raise DamagedError("a chunk that ends elsewhere")
        out[ranges(begins[still], counts[still])] = np.repeat(bits[still], counts[still])
        mixed = (first[still].view(np.uint64) * _MIX + delta[still].view(np.uint64)) * _MIX
        _, one, of_times[still] = np.unique(
            mixed + counts[still].view(np.uint64), return_index=True, return_inverse=True
        )
        one = still[one]
        rows.append(first[one, None] + delta[one, None] * np.arange(int(counts[one].max())))
    # The longest come first: those that still have samples are always a beginning of the list.
    moving = moving[np.argsort(-counts[moving], kind="stable")]
    if len(moving):
        chunks = _Moving(data, counts[moving], first[moving], delta[moving], bits[moving], 8 * at[moving])
        times, mixed = chunks.run(out, begins[moving])
        if ((chunks.at + 7) // 8 != (starts + lengths)[moving]).any():
            raise DamagedError("a chunk that ends elsewhere")
        _, one, whose = np.unique(mixed, return_index=True, return_inverse=True)
        of_times[moving] = whose + sum(len(r) for r in rows)
        rows.append(np.ascontiguousarray(times[:, one].T))
    return stacked(rows), of_times


def stacked(tables: list[Ints]) -> Ints:
    """Tables one above the other; the narrower ones are filled up."""
    wide = max((t.shape[1] for t in tables), default=0)
    return np.concatenate(
        [np.pad(t, ((0, 0), (0, wide - t.shape[1]))) for t in [np.zeros((0, wide), np.int64), *tables]]
    )


def _going(counts: Ints, k: int) -> int:
    """How many of the chunks, longest first, have a sample number k."""
    return int(np.searchsorted(-counts, -k))


def _heads(data: Bytes, starts: Ints) -> tuple[Ints, Ints, Ints, Words, Ints]:
    """Of each chunk: number of samples, first time, first difference, first value, and the byte behind them."""
    counts = counts_of(data, starts)
    first, at = varints(data, starts + 2)
    bits = np.ndarray((len(data) - 7,), ">u8", buffer=data, strides=(1,))[at].astype(np.uint64)
    at = at + 8
    delta = np.zeros(len(starts), np.int64)
    several = np.flatnonzero(counts > 1)
    told, at[several] = uvarints(data, at[several])
    delta[several] = told.view(np.int64)
    return counts, first, delta, bits, at


def _any_bit(data: Bytes, begins: Ints, ends: Ints) -> NDArray[np.bool_]:
    """Whether any bit is set between two places."""
    if (ends < begins).any():
        raise DamagedError("a chunk shorter than its head")
    pairs = np.stack([begins, ends], axis=1).ravel()
    found: NDArray[np.bool_] = np.maximum.reduceat(data, pairs)[::2] > 0
    return found & (ends > begins)


class _Moving:
    """Where the reading of every chunk stands: bit position, time and its difference, value and its window of bits."""

    def __init__(self, data: Bytes, counts: Ints, time: Ints, delta: Ints, bits: Words, at: Ints) -> None:
        self._words = data[: len(data) // 8 * 8].view(">u8").astype(np.uint64)
        self._counts, self._time, self._delta, self._bits, self.at = counts, time, delta, bits, at
        self._leading = np.zeros(len(counts), np.uint64)
        self._wide = np.zeros(len(counts), np.uint64)

    def run(self, out: Words, begins: Ints) -> tuple[Ints, Words]:
        """Write all values; returns times[k, chunk], and a number for each chunk that equal times have in common."""
        most = int(self._counts[0])
        times = np.zeros((most, len(self._counts)), np.int64)
        times[0] = self._time
        out[begins] = self._bits
        mixed = self._time.view(np.uint64) * _MIX
        for k in range(1, most):
            n = _going(self._counts, k)
            self._sample(n, k > 1)
            self._time[:n] += self._delta[:n]
            times[k, :n] = self._time[:n]
            out[begins[:n] + k] = self._bits[:n]
            mixed[:n] ^= mixed[:n] >> _HALF
            mixed[:n] += self._time[:n].view(np.uint64)
            mixed[:n] *= _MIX
        return times, mixed

    def _sample(self, n: int, timed: bool) -> None:
        at = self.at[:n]
        word = self._word(at)
        if timed:
            odd = (word.view(np.int64) < 0).nonzero()[0]
            if len(odd):
                self._irregular(odd, word, at)
            at += 1
            word <<= _ONE
        changed = word.view(np.int64) < 0
        many = np.count_nonzero(changed)
        if _MOST_OF * many > n:
            self._change_all(n, word, at)
        elif many:
            some = changed.nonzero()[0]
            self._change(some, word[some], at)
            at += 1
        else:
            at += 1

    def _word(self, at: Ints) -> Words:
        """64 bits from each position on; behind the end there are others', which the end of the chunk tells."""
        place, shift = at >> 6, (at & 63).view(np.uint64)
        first = self._words.take(place, mode="clip")
        first <<= shift
        place += 1
        rest = self._words.take(place, mode="clip")
        rest >>= np.uint64(64) - shift
        first |= rest
        return first

    def _irregular(self, odd: Ints, word: Words, at: Ints) -> None:
        """Scrapes that came early or late; leaves the last bit of their field to be stepped over by the caller."""
        field = word[odd]
        kind = (field >> np.uint64(60)).astype(np.intp)
        prefix, width = _PREFIX[kind], _WIDTH[kind]
        raw = (field << prefix.astype(np.uint64)) >> (64 - width).astype(np.uint64)
        by = raw.view(np.int64)
        by = np.where(by > (1 << (width - 1)), by - (1 << width), by)
        rare = (kind == 15).nonzero()[0]
        if len(rare):
            by[rare] = self._word(at[odd[rare]] + 4).view(np.int64)
        self._delta[odd] += by
        at[odd] += prefix + width - 1
        word[odd] = self._word(at[odd])

    def _change_all(self, n: int, word: Words, at: Ints) -> None:
        """Values that are not the ones before, where most are not; the others have no bits that differ."""
        leading, wide, bits = self._leading[:n], self._wide[:n], self._bits[:n]
        changed = word >> _LAST
        fresh = (word >> np.uint64(62)) == _FRESH
        np.copyto(leading, word >> np.uint64(57) & np.uint64(31), where=fresh)
        size = word >> np.uint64(51) & np.uint64(63)
        size[size == 0] = 64
        np.copyto(wide, size, where=fresh)
        at += 1
        at += changed.view(np.int64)
        at += fresh * np.int64(11)
        told = wide * changed
        found = self._word(at)
        found >>= np.uint64(64) - told  # of none, all
        found <<= np.uint64(64) - leading - wide
        bits ^= found
        at += told.view(np.int64)

    def _change(self, changed: Ints, field: Words, at: Ints) -> None:
        """Values that are not the ones before; leaves one bit to be stepped over by the caller."""
        leading, wide = self._leading[changed], self._wide[changed]
        fresh = (field >> np.uint64(62) == _FRESH).nonzero()[0]
        head = np.full(len(changed), 2, np.int64)
        if len(fresh):
            told = field[fresh]
            leading[fresh] = told >> np.uint64(57) & np.uint64(31)
            size = told >> np.uint64(51) & np.uint64(63)
            size[size == 0] = 64
            wide[fresh] = size
            self._leading[changed], self._wide[changed] = leading, wide
            head[fresh] = 13
        where = at[changed] + head
        bits = self._word(where) >> (np.uint64(64) - wide)
        self._bits[changed] ^= bits << (np.uint64(64) - leading - wide)
        at[changed] = where + wide.view(np.int64) - 1
