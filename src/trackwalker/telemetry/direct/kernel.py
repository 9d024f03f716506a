"""`unxor.py` as machine code, where numba is installed: a chunk after the other, ten times the speed of numpy.

Compiled once for each user and machine, and kept in the user's cache folder. It lets go of Python's lock, so that
threads decode side by side. Nothing here checks the bounds of an array: `decoding.py` hands over what fits.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import int64, njit, uint32, uint64

from trackwalker.telemetry.compiled import inside

PAD = 64  # bytes behind a chunk that may be looked at
_BEHIND = 8  # the same in words
_HEAD = 40  # bytes: no head of a chunk is longer


def _swapped_(word: Any) -> Any:
    """A word with its bytes the other way round."""
    word = ((word >> uint64(8)) & uint64(0x00FF00FF00FF00FF)) | ((word & uint64(0x00FF00FF00FF00FF)) << uint64(8))
    word = ((word >> uint64(16)) & uint64(0x0000FFFF0000FFFF)) | ((word & uint64(0x0000FFFF0000FFFF)) << uint64(16))
    return (word >> uint64(32)) | (word << uint64(32))


def _uvarint_(data: Any, at: Any) -> Any:
    """An unsigned number and where it ends; that is behind every chunk where it does not end."""
    out, shift = uint64(0), uint64(0)
    while shift <= uint64(63):
        byte = uint64(data[at])
        at += 1
        out |= (byte & uint64(0x7F)) << shift
        if byte < uint64(0x80):
            return out, at
        shift += uint64(7)
    return out, int64(1) << int64(40)


def _within_(data: Any, at: Any, end: Any) -> Any:
    """The same before an end; behind it nothing is read, and it stays behind."""
    if at >= end:
        return uint64(0), end + 1
    return _uvarint(data, at)


def _bits_(words: Any, at: Any) -> Any:
    """64 bits from a position on."""
    place, shift = at >> uint64(6), at & uint64(63)
    return (words[place] << shift) | ((words[place + uint64(1)] >> uint64(1)) >> (uint64(63) - shift))


_swapped, _uvarint, _bits = inside(_swapped_), inside(_uvarint_), inside(_bits_)
_within = inside(_within_)


def _head_(data: Any) -> Any:
    """Of a chunk: first time, first difference, first value, and the byte behind them."""
    raw, at = _uvarint(data, int64(2))
    time = int64(raw >> uint64(1)) ^ -int64(raw & uint64(1))
    bits, delta = uint64(0), int64(0)
    if at + 8 > len(data) - PAD:
        return time, delta, bits, int64(len(data))
    for i in range(8):
        bits = (bits << uint64(8)) | uint64(data[at + i])
    at += 8
    if data[0] != 0 or data[1] != 1:  # more samples than one
        raw, at = _uvarint(data, at)
        delta = int64(raw)
    return time, delta, bits, at


_head = inside(_head_)


def _tables() -> Any:
    """Of CRC-32C, for eight bytes at once: what a byte does that stands 0 to 7 bytes before the end."""
    out = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        out[0, byte] = crc
    for k in range(1, 8):
        out[k] = out[k - 1] >> np.uint32(8) ^ out[0, out[k - 1] & np.uint32(0xFF)]
    return out


_TABLES = _tables()


def _checksums(data: Any, starts: Any, ends: Any, out: Any) -> None:
    """CRC-32C of stretches."""
    for c in range(len(starts)):
        at, end, crc = starts[c], ends[c], uint32(0xFFFFFFFF)
        while end - at >= 8:
            first = uint32(data[at]) | uint32(data[at + 1]) << uint32(8)
            crc ^= first | uint32(data[at + 2]) << uint32(16) | uint32(data[at + 3]) << uint32(24)
            crc = (
                _TABLES[7, crc & uint32(255)] ^ _TABLES[6, crc >> uint32(8) & uint32(255)]
                ^ _TABLES[5, crc >> uint32(16) & uint32(255)] ^ _TABLES[4, crc >> uint32(24)]
                ^ _TABLES[3, data[at + 4]] ^ _TABLES[2, data[at + 5]]
                ^ _TABLES[1, data[at + 6]] ^ _TABLES[0, data[at + 7]]
            )  # fmt: skip
            at += 8
        while at < end:
            crc = crc >> uint32(8) ^ _TABLES[0, (crc ^ uint32(data[at])) & uint32(255)]
            at += 1
        out[c] = ~crc


def _series(data: Any, starts: Any, ends: Any, most: Any, columns: Any, labels: Any, begins: Any, chunks: Any) -> Any:
    """Entries of an index. Without room for labels: which names there are, and how many chunks each series has; then
    its labels, in their columns, and its chunks from its row on. Returns -1 where an entry is none."""
    known = uint64(len(columns))
    for c in range(len(starts)):
        end = ends[c]
        count, at = _within(data, starts[c], end)
        if count > most:
            return -1
        for _ in range(int64(count)):
            name, at = _within(data, at, end)
            value, at = _within(data, at, end)
            if at > end or name >= known or value >= known:
                return -1
            if len(labels):
                labels[c, columns[name]] = int64(value)
            else:
                columns[name] = 1
        count, at = _within(data, at, end)
        if at > end or count > uint64(end - at):  # a chunk has three bytes at least
            return -1
        last, place = int64(0), int64(0)
        for k in range(int64(count) if len(labels) else 0):
            first, at = _within(data, at, end)
            span, at = _within(data, at, end)
            by, at = _within(data, at, end)
            if at > end:
                return -1
            last += int64(first) if k else int64(first >> uint64(1)) ^ -int64(first & uint64(1))
            place += int64(by >> uint64(1)) ^ -int64(by & uint64(1)) if k else int64(by)
            row = chunks[begins[c] + k]
            row[0], row[1], row[2], row[3] = c, last, last + int64(span), place
            last += int64(span)
        if not len(labels):
            begins[c] = int64(count)
    return 0


def _look(data: Any, starts: Any, lengths: Any, bits: Any, moves: Any) -> None:
    """Of each chunk the first value, and whether any bit behind the head is set."""
    held = np.zeros(_HEAD + PAD, np.uint8)
    for c in range(len(starts)):
        start, size = starts[c], lengths[c]
        head = min(size, _HEAD)
        held[:head] = data[start : start + head]
        held[head : head + PAD] = 0
        _, _, bits[c], at = _head(held[: head + PAD])
        moves[c] = at > size
        for i in range(at, size):
            if data[start + i] != 0:
                moves[c] = True
                break


def _decode(
    data: Any, starts: Any, lengths: Any, counts: Any, longest: Any,
    out: Any, begins: Any, rows: Any, mixes: Any, whose: Any,
) -> Any:  # fmt: skip
    """Write each chunk's values from its place on (nowhere if that is negative) and every distinct row of times once.

    Returns how many rows there are; -1 where a chunk is none, or ends elsewhere.
    """
    held = np.zeros((longest + 7) // 8 * 8 + PAD, np.uint8)
    words = held.view(np.uint64)
    slots = 16
    while slots < 2 * len(starts):
        slots *= 2
    table = np.full(slots, -1, np.int64)
    sizes = np.zeros(len(starts), np.int64)
    used = 0
    for c in range(len(starts)):
        size, count, to = lengths[c], counts[c], begins[c]
        held[:size] = data[starts[c] : starts[c] + size]
        held[size : size + PAD] = 0
        if int64(held[0]) << 8 | int64(held[1]) != count:
            return -1
        time, delta, bits, byte = _head(held[: size + PAD])
        if byte > size:
            return -1
        whole = (size + 7) // 8 + _BEHIND - 1
        for i in range(byte // 8, whole):
            words[i] = _swapped(words[i])
        at, limit = uint64(8 * byte), uint64(8 * size)
        leading, wide = uint64(0), uint64(0)
        row = rows[used]
        row[0] = time
        if to >= 0:
            out[to] = bits
        k = 1
        while k < count:
            if at >= limit:
                return -1
            word = _bits(words, at)
            if k > 1:
                if word == uint64(0) and count - k >= 32:  # 32 regular scrapes of the value before
                    for i in range(k, k + 32):
                        time += delta
                        row[i] = time
                    if to >= 0:
                        out[to + k : to + k + 32] = bits
                    at += uint64(64)
                    k += 32
                    continue
                if word >> uint64(63) == uint64(0):
                    at += uint64(1)
                    word <<= uint64(1)
                else:
                    kind = word >> uint64(60)
                    if kind == uint64(15):
                        delta += int64(_bits(words, at + uint64(4)))
                        at += uint64(68)
                    else:
                        prefix, width = uint64(2), uint64(14)
                        if kind == uint64(14):
                            prefix, width = uint64(4), uint64(20)
                        elif kind >= uint64(12):
                            prefix, width = uint64(3), uint64(17)
                        by = int64((word << prefix) >> (uint64(64) - width))
                        if by > int64(1) << int64(width - uint64(1)):
                            by -= int64(1) << int64(width)
                        delta += by
                        at += prefix + width
                    word = _bits(words, at)
            if word >> uint64(63) == uint64(0):
                at += uint64(1)
            else:
                if (word >> uint64(62)) & uint64(1):
                    leading = (word >> uint64(57)) & uint64(31)
                    wide = (word >> uint64(51)) & uint64(63)
                    if wide == uint64(0):
                        wide = uint64(64)
                    at += uint64(13)
                else:
                    at += uint64(2)
                if wide > uint64(0) and leading + wide <= uint64(64):
                    bits ^= (_bits(words, at) >> (uint64(64) - wide)) << (uint64(64) - leading - wide)
                at += wide
            time += delta
            row[k] = time
            if to >= 0:
                out[to + k] = bits
            k += 1
        if (at + uint64(7)) >> uint64(3) != uint64(size):
            return -1
        # First, last and number tell nearly all rows apart; those that they do not are compared anyway.
        mixed = (uint64(row[0]) * uint64(0x9E3779B97F4A7C15) ^ uint64(time)) * uint64(0xD1B54A32D192ED03) + uint64(
            count
        )
        slot = int64((mixed ^ (mixed >> uint64(32))) & uint64(slots - 1))
        while True:
            known = table[slot]
            if known < 0:
                row[count:] = 0
                table[slot], sizes[used], mixes[used], whose[c] = used, count, mixed, used
                used += 1
                break
            if sizes[known] == count and mixes[known] == mixed:
                same = True
                for i in range(count):
                    if rows[known, i] != row[i]:
                        same = False
                        break
                if same:
                    whose[c] = known
                    break
            slot = (slot + 1) & (slots - 1)
    return used


def _once(rows: Any, mixes: Any, one: Any, back: Any) -> Any:
    """Which rows are the first of their kind, and which of those each row is; returns how many."""
    slots = 16
    while slots < 2 * len(rows):
        slots *= 2
    table = np.full(slots, -1, np.int64)
    used = 0
    for r in range(len(rows)):
        mixed = mixes[r]
        slot = int64((mixed ^ (mixed >> uint64(32))) & uint64(slots - 1))
        while True:
            known = table[slot]
            if known < 0:
                table[slot], one[used], back[r] = used, r, used
                used += 1
                break
            other = one[known]
            same = mixes[other] == mixed
            for i in range(rows.shape[1] if same else 0):
                if rows[other, i] != rows[r, i]:
                    same = False
                    break
            if same:
                back[r] = known
                break
            slot = (slot + 1) & (slots - 1)
    return used


_bytes = numba.types.Array(numba.types.uint8, 1, "C", readonly=True)
_ints, _words = int64[::1], uint64[::1]
series = njit(
    [int64(_bytes, _ints, _ints, uint64, _ints, int64[:, ::1], _ints, int64[:, ::1])], nogil=True, cache=True
)(_series)
checksums = njit([numba.void(_bytes, _ints, _ints, uint32[::1])], nogil=True, cache=True)(_checksums)
once = njit([int64(int64[:, ::1], _words, _ints, _ints)], nogil=True, cache=True)(_once)
look = njit([numba.void(_bytes, _ints, _ints, _words, numba.types.boolean[::1])], nogil=True, cache=True)(_look)
decode = njit(
    [int64(_bytes, _ints, _ints, _ints, int64, _words, _ints, int64[:, ::1], _words, _ints)], nogil=True, cache=True
)(_decode)
