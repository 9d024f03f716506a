"""Prometheus' XOR chunks, encoded for thousands of series at once.

One sample after the other is how the format is defined and how Python is slow; one *position* after the other, over all
series together, gives the same bits at numpy's speed.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

SAMPLES_PER_CHUNK = 120  # what Prometheus itself cuts at
STREAMS_AT_ONCE = 4096  # bounds the memory of the bit arrays
_KERNEL = "trackwalker.telemetry.kernels"
_NEW_WINDOW = 0b11
_SAME_WINDOW = 0b10


def encode_chunks(times: Ints, values: Floats) -> list[bytes]:
    """One XOR chunk per row of `times` (milliseconds, strictly rising) and `values`, both (rows, samples)."""
    chunks: list[bytes] = []
    encode = _by_compiler if _KERNEL in sys.modules else _encode
    for at in range(0, len(times), STREAMS_AT_ONCE):
        chunks += encode(times[at : at + STREAMS_AT_ONCE], values[at : at + STREAMS_AT_ONCE])
    return chunks


def encode_quickly() -> None:
    """From here on encode by machine code, where numba is installed; its import takes half a second."""
    with contextlib.suppress(Exception):  # not installed, no folder to keep the result in: numpy can do it too
        importlib.import_module(_KERNEL)


def _by_compiler(times: Ints, values: Floats) -> list[bytes]:
    from trackwalker.telemetry import kernels as kernel

    out = np.empty(len(times) * (kernel.LONGEST_HEAD + times.shape[1] * kernel.LONGEST_SAMPLE), np.uint8)
    ends = np.zeros(len(times), np.int64)
    kernel.encode(np.ascontiguousarray(times), np.ascontiguousarray(values).view(np.uint64), out, ends)
    data, places = out[: ends[-1]].tobytes(), ends.tolist()
    return [data[begin:end] for begin, end in zip([0, *places], places, strict=False)]


def _encode(times: Ints, values: Floats) -> list[bytes]:
    rows, count = times.shape
    bits = np.ascontiguousarray(values).view(np.uint64)
    heads = [_head(count, times[r], int(bits[r, 0])) for r in range(rows)]
    if count == 1:
        return heads
    fields, lengths = _fields(times, bits)
    total = lengths.sum(axis=1, dtype=np.int64)
    pad = (-total) % 8
    fields = np.concatenate([fields, np.zeros((rows, 1), np.uint64)], axis=1)
    lengths = np.concatenate([lengths, pad[:, None].astype(np.uint8)], axis=1)
    packed = np.packbits(_spread(fields.ravel(), lengths.ravel())).tobytes()
    ends = np.cumsum((total + pad) // 8)
    begins = np.concatenate([[0], ends[:-1]])
    return [head + packed[b:e] for head, b, e in zip(heads, begins.tolist(), ends.tolist(), strict=True)]


def _head(count: int, times: Ints, first: int) -> bytes:
    """The byte-aligned beginning: sample count, first time, first value, first difference."""
    head = count.to_bytes(2, "big") + varint(int(times[0])) + first.to_bytes(8, "big")
    return head if count == 1 else head + uvarint(int(times[1] - times[0]))


def _fields(times: Ints, bits: Words) -> tuple[Words, NDArray[np.uint8]]:
    """Every bit field of every row in order: (code, number of bits), four per sample after the first."""
    rows, count = bits.shape
    fields = np.zeros((rows, (count - 1) * 4), np.uint64)
    lengths = np.zeros((rows, (count - 1) * 4), np.uint8)
    second_difference = np.diff(times, n=2, axis=1)
    window_leading = np.full(rows, 255, np.uint8)
    window_trailing = np.zeros(rows, np.uint8)
    for at in range(1, count):
        slot = (at - 1) * 4
        if at > 1:  # the first difference stands in the head
            _time_fields(second_difference[:, at - 2], fields, lengths, slot)
        delta = bits[:, at] ^ bits[:, at - 1]
        changed = delta != 0
        leading = np.minimum(_leading_zeros(delta), 31).astype(np.uint8)
        trailing = _trailing_zeros(delta).astype(np.uint8)
        fits = changed & (window_leading != 255) & (leading >= window_leading) & (trailing >= window_trailing)
        fresh = changed & ~fits
        window_leading = np.where(fresh, leading, window_leading)
        window_trailing = np.where(fresh, trailing, window_trailing)
        significant = np.where(changed, 64 - window_leading.astype(np.int64) - window_trailing, 0)
        described = (
            np.uint64(_NEW_WINDOW << 11)
            | (window_leading.astype(np.uint64) << np.uint64(6))
            | (significant.astype(np.uint64) & np.uint64(63))  # 64 is written as 0
        )
        fields[:, slot + 2] = np.where(fresh, described, np.where(fits, np.uint64(_SAME_WINDOW), np.uint64(0)))
        lengths[:, slot + 2] = np.where(fresh, 13, np.where(fits, 2, 1))
        fields[:, slot + 3] = np.where(changed, delta >> window_trailing.astype(np.uint64), np.uint64(0))
        lengths[:, slot + 3] = significant
    return fields, lengths


def _time_fields(dod: Ints, fields: Words, lengths: NDArray[np.uint8], slot: int) -> None:
    """A difference of differences: one bit when the scrape was regular, else the smallest class that holds it."""
    code = np.full(len(dod), 0b1111, np.uint64)
    width = np.full(len(dod), 64, np.int64)
    prefix = np.full(len(dod), 4, np.uint8)
    for size, mark, mark_bits in ((20, 0b1110, 4), (17, 0b110, 3), (14, 0b10, 2), (0, 0, 1)):
        limit = (1 << (size - 1)) if size else 0
        fits = (dod <= limit) & (dod >= (1 - limit if size else 0))
        code[fits], width[fits], prefix[fits] = mark, size, mark_bits
    mask = np.where(width == 64, ~np.uint64(0), (np.uint64(1) << width.astype(np.uint64)) - np.uint64(1))
    fields[:, slot], lengths[:, slot] = code, prefix
    fields[:, slot + 1], lengths[:, slot + 1] = dod.view(np.uint64) & mask, width


def _spread(fields: Words, lengths: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The fields as single bits, most significant first."""
    wide = lengths.astype(np.int64)
    ends = np.cumsum(wide)
    shifts = np.repeat(ends, wide) - 1 - np.arange(int(ends[-1]) if len(ends) else 0)
    return ((np.repeat(fields, wide) >> shifts.astype(np.uint64)) & np.uint64(1)).astype(np.uint8)


def _bit_length(words: Words) -> NDArray[np.int64]:
    high = (words >> np.uint64(32)).astype(np.float64)  # halves are exact as floats, whole words are not
    low = (words & np.uint64(0xFFFFFFFF)).astype(np.float64)
    return np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1]).astype(np.int64)


def _leading_zeros(words: Words) -> NDArray[np.int64]:
    return 64 - _bit_length(words)


def _trailing_zeros(words: Words) -> NDArray[np.int64]:
    return np.maximum(_bit_length(words & (~words + np.uint64(1))) - 1, 0)


@lru_cache(maxsize=1 << 16)  # lengths, symbols and times repeat from series to series
def uvarint(number: int) -> bytes:
    """An unsigned number, seven bits a byte, lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def varint(number: int) -> bytes:
    """A signed number, zigzag, seven bits a byte."""
    return uvarint(number << 1 if number >= 0 else (-number << 1) - 1)
