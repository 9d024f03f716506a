"""TensorBoard event files, read while they grow: checked records, scalars only, at any time resumable by byte offset.

A file is a row of records: length (8 bytes), its checksum, an Event message, its checksum. Scalars stand in an Event's
summary either as a plain float (TensorFlow 1, tensorboardX, PyTorch) or as a tensor of one element (TensorFlow 2, CLU).
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER, _FOOTER = 12, 4
_LARGEST = 1 << 20  # no scalar needs a record of this size: images and the like are stepped over unread
_PATIENCE = 10  # looks at a bad record before it is given up: on a network file system it may still be arriving


@dataclass(frozen=True)
class Scalar:
    """One value of one tag, with the step and the moment it belongs to."""

    step: int
    wall_time: float
    tag: str
    value: float


class EventFile:
    """One event file; `offset` is the first byte not yet handed out."""

    def __init__(self, path: Path, offset: int = 0, patience: int = _PATIENCE) -> None:
        self.path = path
        self.offset = offset
        self.corrupt = 0  # places where a record was given up
        self._patience = patience
        self._looks = 0  # at the bad place where we stand
        self._lost = False  # behind a bad place, with no record found yet

    def read(self, most_bytes: int = 1 << 18) -> list[Scalar]:
        """The scalars of the next whole records, from about `most_bytes`; an unfinished last record waits."""
        with self.path.open("rb") as file:
            ahead = os.fstat(file.fileno()).st_size - self.offset
            file.seek(self.offset)
            # One whole record more than asked for, so that a large one does not stand in the way for ever.
            data = file.read(most_bytes + _HEADER + _LARGEST + _FOOTER)
        found: list[Scalar] = []
        at = 0
        while at < most_bytes and at + _HEADER <= len(data):
            taken = self._take(data, at, ahead - at, found)
            if not taken:
                break
            at += taken
        self.offset += at
        return found

    def _take(self, data: bytes, at: int, ahead: int, found: list[Scalar]) -> int:
        """Read the record at `at`; how many bytes it is long, 0 to wait for more of it."""
        size, checksum = struct.unpack_from("<QI", data, at)
        whole = _HEADER + int(size) + _FOOTER
        if masked_crc(data[at : at + 8]) != checksum:  # then its length is not to be trusted either
            if not self._lost and not self._give_up():
                return 0
            beyond = _next_record(data, at + 1)
            self._lost = beyond + _HEADER > len(data)
            return beyond - at
        self._lost = False
        if whole > ahead:
            return 0
        if size <= _LARGEST:
            body = data[at + _HEADER : at + whole - _FOOTER]
            (checksum,) = struct.unpack_from("<I", data, at + whole - _FOOTER)
            scalars = decode_event(body) if masked_crc(body) == checksum else None
            if scalars is None:
                return whole if self._give_up() else 0
            found += scalars
        self._looks = 0
        return whole

    def _give_up(self) -> bool:
        """Whether to leave a bad record behind: not at the first look, the writer may be at work there."""
        self._looks += 1
        if self._looks < self._patience:
            return False
        self._looks = 0
        self.corrupt += 1
        return True


def _next_record(data: bytes, at: int) -> int:
    """Where a header with a right checksum begins; the end of what was read if there is none."""
    while at + _HEADER <= len(data):
        size, checksum = struct.unpack_from("<QI", data, at)
        if size <= _LARGEST and masked_crc(data[at : at + 8]) == checksum:
            break
        at += 1
    return at


def decode_event(body: bytes) -> list[Scalar] | None:
    """The scalars of an Event message, none if it holds other things, None if it is not such a message."""
    wall_time, step, summaries = 0.0, 0, []
    try:
        for number, content in fields(body):
            if number == 1 and isinstance(content, bytes) and len(content) == 8:
                (wall_time,) = struct.unpack("<d", content)
            elif number == 2 and isinstance(content, int):
                step = _signed(content)
            elif number == 5 and isinstance(content, bytes):
                summaries.append(content)
        values = [item for s in summaries for number, item in fields(s) if number == 1 and isinstance(item, bytes)]
        if not math.isfinite(wall_time):
            return None
        scalars = (_value(item) for item in values)
        return [Scalar(step, wall_time, tag, value) for tag, value in filter(None, scalars)]
    except (ValueError, struct.error):
        return None


def _value(item: bytes) -> tuple[str, float] | None:
    tag, value, plugin = "", None, b"scalars"
    for number, content in fields(item):
        if not isinstance(content, bytes):
            continue
        if number == 1:
            tag = content.decode("utf-8", "replace")
        elif number == 2 and len(content) == 4:
            (value,) = struct.unpack("<f", content)
        elif number == 8:
            value = _tensor(content)
        elif number == 9:
            plugin = _plugin(content) or plugin
    return (tag, value) if value is not None and plugin == b"scalars" else None


def _plugin(metadata: bytes) -> bytes:
    for number, content in fields(metadata):
        if number == 1 and isinstance(content, bytes):
            for inner, name in fields(content):
                if inner == 1 and isinstance(name, bytes):
                    return name
    return b""


# TensorFlow's numbers for element types: how one element looks in `tensor_content`.
_ELEMENT = {1: "<f", 2: "<d", 3: "<i", 4: "<B", 5: "<h", 6: "<b", 9: "<q", 17: "<H", 19: "<e", 22: "<I", 23: "<Q"}
_BFLOAT16, _HALF = 14, 19


def _tensor(content: bytes) -> float | None:
    """The value of a tensor with one numeric element, None for all others."""
    kind, elements = 0, 1
    typed: dict[int, int | bytes] = {}
    for number, item in fields(content):
        if number == 1 and isinstance(item, int):
            kind = item
        elif number == 2 and isinstance(item, bytes):
            elements = _elements(item)
        else:
            typed[number] = item
    if elements != 1:
        return None
    raw = typed.get(4, b"")
    if isinstance(raw, bytes) and raw:
        if kind == _BFLOAT16:
            return _bfloat16(struct.unpack("<H", raw)[0])
        return float(struct.unpack(_ELEMENT[kind], raw)[0]) if kind in _ELEMENT else None
    for number, form in ((5, "<f"), (6, "<d")):
        item = typed.get(number, b"")
        if isinstance(item, bytes) and len(item) == struct.calcsize(form):
            return float(struct.unpack(form, item)[0])
    for number in (7, 10, 13, 16, 17):  # int, int64, half, uint32, uint64: packed or plain variable-length numbers
        if number in typed:
            item = typed[number]
            whole = item if isinstance(item, int) else _varint(item, 0)[0]
            if number != 13:
                return float(_signed(whole))
            bits = whole & 0xFFFF
            return _bfloat16(bits) if kind == _BFLOAT16 else float(struct.unpack("<e", struct.pack("<H", bits))[0])
    return None


def _bfloat16(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def _elements(shape: bytes) -> int:
    count = 1
    for number, dim in fields(shape):
        if number == 2 and isinstance(dim, bytes):
            count *= next((_signed(size) for n, size in fields(dim) if n == 1 and isinstance(size, int)), 0)
    return count


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer message: variable-length numbers as int, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if size > len(data) - at:
            raise ValueError("a field is longer than its message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError("a number without an end")


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC32C = _table()


def masked_crc(data: bytes) -> int:
    """The checksum of event files: CRC-32C, rotated and shifted so that a checksum of checksums stays useful."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
