"""Writes the protobuf wire format, a million rows at a time: the other direction of `wire`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_VARINT, _BYTES = 0, 2


def varint(value: int) -> bytes:
    """One number, seven bits to a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A number field."""
    return varint(field << 3 | _VARINT) + varint(value)


def block(field: int, body: bytes | str) -> bytes:
    """A string, bytes or message field."""
    raw = body.encode() if isinstance(body, str) else body
    return varint(field << 3 | _BYTES) + varint(len(raw)) + raw


Column = npt.NDArray[Any]


class Ragged(NamedTuple):
    """Rows of bytes of different lengths, one after the other."""

    data: Column
    lengths: Column


def varints(values: Column) -> Ragged:
    """One number in each row."""
    rest = values.astype(np.uint64)
    digits = np.empty((len(rest), 10), np.uint8)
    lengths = np.ones(len(rest), np.int64)
    for i in range(10):
        digits[:, i] = rest & np.uint64(0x7F)
        rest = rest >> np.uint64(7)
        more = rest > 0
        digits[more, i] |= 0x80
        lengths += more
    return Ragged(digits[np.arange(10) < lengths[:, None]], lengths)


def same(text: bytes, rows: int) -> Ragged:
    """The same bytes in each row."""
    return Ragged(np.tile(np.frombuffer(text, np.uint8), rows), np.full(rows, len(text), np.int64))


def chosen(texts: Sequence[bytes], index: Column) -> Ragged:
    """In each row one of a few texts."""
    sizes = np.array([len(t) for t in texts], np.int64)
    starts = np.cumsum(sizes) - sizes
    lengths = sizes[index]
    pool = np.frombuffer(b"".join(texts), np.uint8)
    return Ragged(pool[_within(lengths) + np.repeat(starts[index], lengths)], lengths)


def joined(*columns: Ragged) -> Ragged:
    """The columns side by side, row by row."""
    lengths = np.sum([c.lengths for c in columns], axis=0)
    at = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    for column in columns:
        out[_within(column.lengths) + np.repeat(at, column.lengths)] = column.data
        at = at + column.lengths
    return Ragged(out, lengths)


def blocks(field: int, rows: Ragged) -> bytes:
    """Every row as one message of a repeated field."""
    head = same(varint(field << 3 | _BYTES), len(rows.lengths))
    return joined(head, varints(rows.lengths), rows).data.tobytes()


def _within(lengths: Column) -> Column:
    """0, 1, 2 ... within each row."""
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    within: Column = np.arange(len(first)) - first
    return within
