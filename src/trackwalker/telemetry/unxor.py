"""Prometheus' XOR chunks, decoded for thousands of chunks at once: `xor.py` the other way round.

One position after the other over all chunks together, at numpy's speed. Nearly all time goes to values that changed; a
chunk whose scrapes were regular and whose value stayed has no bit set, and costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackwalker.telemetry.xor import Floats, Ints, Words

Bytes = NDArray[np.uint8]

_PAD = 16  # bytes that may be looked at behind the last chunk
_LONGEST = 1 << 20  # bytes of a chunk
_MOST_SAMPLES = 2048  # of a chunk; Prometheus cuts them at 120
# By the first four bits of a time's field: how many of them are the prefix, and how many bits follow.
_PREFIX = np.array([1] * 8 + [2] * 4 + [3] * 2 + [4] * 2, np.int64)
_WIDTH = np.array([0] * 8 + [14] * 4 + [17] * 2 + [20, 64], np.int64)
_ONE, _LAST = np.uint64(1), np.uint64(63)


class DamagedError(ValueError):
    """Bytes that are no chunk, no index, or not what their checksum says."""


@dataclass(frozen=True)
class Decoded:
    """Samples of chunks: values[chunk, k] at times[of_times[chunk], k], k < counts[chunk].

    Series that are scraped together share their times: each distinct row of times is held once.
    """

    counts: Ints
    times: Ints
    of_times: Ints
    values: Floats


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


def gather(data: Bytes, starts: Ints, lengths: Ints) -> tuple[Bytes, Ints]:
    """Pieces of a file one behind the other, and where each begins."""
    begins = np.concatenate([[0], np.cumsum(lengths)])
    total = int(begins[-1])
    out = np.zeros(total + _PAD, np.uint8)
    out[:total] = data[np.arange(total) + np.repeat(starts - begins[:-1], lengths)]
    return out, begins[:-1]


def counts_of(data: Bytes, starts: Ints) -> Ints:
    """How many samples the chunks at these places have."""
    counts = data[starts].astype(np.int64) << 8 | data[starts + 1]
    if counts.min(initial=1) == 0 or counts.max(initial=0) > _MOST_SAMPLES:
        raise DamagedError("a chunk without samples, or with too many to be decoded beside others")
    return counts


def decode(data: Bytes, starts: Ints, lengths: Ints) -> Decoded:
    """The chunks that lie at these places of a file (without their length, encoding and checksum)."""
    if lengths.min() < 3 or lengths.max() > _LONGEST or (starts + lengths).max() > len(data):
        raise DamagedError("a chunk of an impossible length")
    return _decode(*gather(data, starts, lengths), lengths)


def _decode(data: Bytes, starts: Ints, lengths: Ints) -> Decoded:
    try:
        counts, first, delta, bits, at = _heads(data, starts)
        # As if every scrape had been regular and no value had changed: then no bit is set.
        k = np.arange(int(counts.max()))
        times = first[:, None] + delta[:, None] * k
        values = np.repeat(bits[:, None], len(k), axis=1)
        moving = np.flatnonzero(_any_bit(data, at, starts + lengths))
        moving = moving[np.argsort(-counts[moving], kind="stable")]
        if len(moving):
            chunks = _Moving(data, counts[moving], first[moving], delta[moving], bits[moving], 8 * at[moving])
            most = slice(int(counts[moving[0]]))
            times[moving, most], values[moving, most] = chunks.run()
            if ((chunks.at + 7) // 8 != (starts + lengths)[moving]).any():
                raise DamagedError("a chunk that ends elsewhere")
    except IndexError:
        raise DamagedError("a chunk that goes on behind its end") from None
    rows, of_times = _distinct(times)
    return Decoded(counts, rows, of_times, values.view(np.float64))


def _heads(data: Bytes, starts: Ints) -> tuple[Ints, Ints, Ints, Words, Ints]:
    """Of each chunk: number of samples, first time, first difference, first value, and the byte behind them."""
    counts = counts_of(data, starts)
    first, at = varints(data, starts + 2)
    bits = _words(data)[at].astype(np.uint64)
    at = at + 8
    delta = np.zeros(len(starts), np.int64)
    several = np.flatnonzero(counts > 1)
    told, at[several] = uvarints(data, at[several])
    delta[several] = told.view(np.int64)
    return counts, first, delta, bits, at


def _words(data: Bytes) -> NDArray[np.uint64]:
    """The eight bytes from every byte on."""
    return np.ndarray((len(data) - 7,), ">u8", buffer=data, strides=(1,))


def _any_bit(data: Bytes, begins: Ints, ends: Ints) -> NDArray[np.bool_]:
    """Whether any bit is set between two places."""
    if (ends < begins).any():
        raise DamagedError("a chunk shorter than its head")
    pairs = np.stack([begins, ends], axis=1).ravel()
    found: NDArray[np.bool_] = np.maximum.reduceat(data, pairs)[::2] > 0
    return found & (ends > begins)


def _distinct(times: Ints) -> tuple[Ints, Ints]:
    """Each row of a table once, and which one stood where."""
    odd = np.arange(1, 2 * times.shape[1], 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (times.view(np.uint64) * (odd ^ (odd >> np.uint64(29)))).sum(axis=1)
    _, first, which = np.unique(mixed, return_index=True, return_inverse=True)
    rows = times[first]
    return (rows, which) if np.array_equal(rows[which], times) else (times, np.arange(len(times)))


class _Moving:
    """Where the reading of every chunk stands: bit position, time and its difference, value and its window of bits.

    The longest come first: those that still have samples are always a beginning of the list.
    """

    def __init__(self, data: Bytes, counts: Ints, time: Ints, delta: Ints, bits: Words, at: Ints) -> None:
        self._data, self._words = data, _words(data)
        self._counts, self._time, self._delta, self._bits, self.at = counts, time, delta, bits, at
        self._leading = np.zeros(len(counts), np.uint64)
        self._wide = np.zeros(len(counts), np.uint64)

    def run(self) -> tuple[Ints, Words]:
        """All times and values, one row for each chunk."""
        most = int(self._counts[0])
        times = np.zeros((most, len(self._counts)), np.int64)
        bits = np.zeros((most, len(self._counts)), np.uint64)
        times[0], bits[0] = self._time, self._bits
        for k in range(1, most):
            n = int(np.searchsorted(-self._counts, -k))
            self._sample(n, k > 1)
            self._time[:n] += self._delta[:n]
            times[k, :n], bits[k, :n] = self._time[:n], self._bits[:n]
        return times.T, bits.T

    def _sample(self, n: int, timed: bool) -> None:
        at = self.at[:n]
        word = self._word(at)
        if timed:
            odd = (word >> _LAST).nonzero()[0]
            if len(odd):
                self._irregular(odd, word, at)
            at += 1
            word <<= _ONE
        changed = (word >> _LAST).nonzero()[0]
        if len(changed):
            self._change(changed, word[changed], at)
        at += 1

    def _word(self, at: Ints) -> Words:
        """At least 57 bits from each position on, at the upper end of a word."""
        out: Words = self._words[at >> 3].astype(np.uint64) << (at & 7).astype(np.uint64)
        return out

    def _whole_word(self, at: Ints) -> Words:
        """64 bits from each position on."""
        shift = (at & 7).astype(np.uint64)
        rest: Words = self._data[(at >> 3) + 8].astype(np.uint64) >> (np.uint64(8) - shift)
        rest |= self._word(at)
        return rest

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
            by[rare] = self._whole_word(at[odd[rare]] + 4).view(np.int64)
        self._delta[odd] += by
        at[odd] += prefix + width - 1
        word[odd] = field << (prefix + np.minimum(width, 20) - 1).astype(np.uint64)
        if len(rare):
            word[odd[rare]] = self._word(at[odd[rare]])

    def _change(self, changed: Ints, field: Words, at: Ints) -> None:
        """Values that are not the ones before; leaves one bit to be stepped over by the caller."""
        leading, wide = self._leading[changed], self._wide[changed]
        fresh = (field >> np.uint64(62) & _ONE).nonzero()[0]
        head = np.full(len(changed), 2, np.int64)
        if len(fresh):
            told = field[fresh]
            leading[fresh] = told >> np.uint64(57) & np.uint64(31)
            size = told >> np.uint64(51) & np.uint64(63)
            wide[fresh] = np.where(size == 0, np.uint64(64), size)
            self._leading[changed], self._wide[changed] = leading, wide
            head[fresh] = 13
        where = at[changed] + head
        bits = self._whole_word(where) >> (np.uint64(64) - wide)
        self._bits[changed] ^= bits << (np.uint64(64) - leading - wide)
        at[changed] = where + wide.view(np.int64) - 1
