"""The protobuf wire format by numpy: many small messages decoded at once, column by column.

`fields` walks one message in plain Python: right for metadata. `chain`, `varints` and `windows` work on
millions of messages: a loop per field, never per message. Nothing here knows what the fields mean.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from trackwalker.errors import EvidenceError
from trackwalker.perf.formats.model import NONE, Gap, Int64

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Value = int | memoryview

_ALL_BITS = (1 << 64) - 1
PAD = 16  # bytes of zeros after a block, so that a window at its last byte is inside
_CHUNK = 2 << 10  # bytes each walker of `chain` covers
_OVERRUNS = (384, 2 << 10)  # bytes it goes on beside the next one, and at the second attempt


# Gzip without surprises: unpacked in pieces, and not further than a real trace could need.
MAGIC = b"\x1f\x8b"
_WBITS = 31
_PIECE = 1 << 20
_ALWAYS = 64 << 20  # so much may come out of any file, however small
_RATIO = 60


def unzipped(packed: IO[bytes], name: str) -> Iterator[bytes]:
    """What a gzip file holds; a bomb raises EvidenceError, a cut or damaged one EOFError or zlib.error."""
    size = packed.seek(0, 2)
    packed.seek(0)
    left = max(_ALWAYS, _RATIO * size)
    unpacker = zlib.decompressobj(wbits=_WBITS)
    unfinished = False
    while piece := packed.read(_PIECE):
        while piece:
            out = unpacker.decompress(piece, _PIECE)
            left -= len(out)
            if left < 0:
                raise EvidenceError(f"{name} unpacks to more than {_RATIO} times its size: this is no trace, not read")
            yield out
            unfinished, piece = not unpacker.eof, unpacker.unconsumed_tail or unpacker.unused_data
            if unpacker.eof:  # a file can be several gzip streams, one after the other
                unpacker = zlib.decompressobj(wbits=_WBITS)
    if unfinished:
        raise EOFError("it ends in the middle")


class CutError(ValueError):
    """A message ends before its own length says."""


class Source:
    """The bytes of a file, mapped and not read; gzip is unpacked into an unnamed temporary file first."""

    def __init__(self, path: Path) -> None:
        self.gaps: list[Gap] = []
        try:
            with path.open("rb") as file:
                self._map = self._mapped(path, file)
        except OSError as error:
            raise EvidenceError(f"{path}: cannot be read ({error.strerror})") from error
        self.view = memoryview(self._map)
        self.data: Bytes = np.frombuffer(self._map, np.uint8)

    def _mapped(self, path: Path, file: IO[bytes]) -> mmap.mmap:
        if file.read(2) != MAGIC:
            return _mapped(path, file)
        with tempfile.TemporaryFile() as plain:
            self._unpack(path, file, plain)
            return _mapped(path, plain)

    def _unpack(self, path: Path, packed: IO[bytes], plain: IO[bytes]) -> None:
        try:
            for piece in unzipped(packed, path.name):
                plain.write(piece)
        except (zlib.error, EOFError) as trouble:
            why = f"{path.name} is cut or damaged ({trouble})"
            self.gaps.append(Gap("the end of the trace", why, "copy it again"))
        plain.flush()

    def __len__(self) -> int:
        return len(self._map)

    def block(self, start: int, end: int) -> Bytes:
        """A padded copy of a stretch: what the vectorised functions work on."""
        copy = np.zeros(end - start + PAD, np.uint8)
        copy[: end - start] = self.data[start:end]
        return copy

    def release(self, start: int, end: int) -> None:
        """Pages that were read and are not needed again need not count as our memory."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if end - first >= mmap.PAGESIZE:
            self._map.madvise(mmap.MADV_DONTNEED, first, (end - first) // mmap.PAGESIZE * mmap.PAGESIZE)


def _mapped(path: Path, file: IO[bytes]) -> mmap.mmap:
    try:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except ValueError as error:
        raise EvidenceError(f"{path}: the trace is empty; the profiler was stopped before it wrote it") from error


def varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """One varint: its value and where the next byte is."""
    value = shift = 0
    while at < end:
        byte = view[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            break
    raise CutError(f"no varint ends before byte {at}")


def field_at(view: memoryview, at: int, end: int) -> tuple[int, int, int]:
    """The field at a byte: its number, and where its payload starts and ends (the next field begins there)."""
    if at < end and view[at] < 0x80:
        key, at = view[at], at + 1
    else:
        key, at = varint(view, at, end)
    kind = key & 7
    if kind == 0:
        return key >> 3, at, varint(view, at, end)[1]
    if kind == 2:
        size, at = varint(view, at, end)
    elif kind in (1, 5):
        size = 8 if kind == 1 else 4
    else:
        raise CutError(f"unknown wire type {kind} at byte {at}")
    if at + size > end:
        raise CutError(f"a field of {size} bytes at byte {at} is not whole")
    return key >> 3, at, at + size


def fields(view: memoryview) -> Iterator[tuple[int, Value]]:
    """The fields of one message in order: numbers as they are, texts and messages as views; CutError at a torn end."""
    at, end = 0, len(view)
    while at < end:
        if at + 1 < end and view[at] < 0x80 and view[at + 1] < 0x80:  # a key and a number or length of one byte each
            key, size = view[at], view[at + 1]
            if key & 7 == 0:
                yield key >> 3, size
                at += 2
                continue
            if key & 7 == 2 and at + 2 + size <= end:
                yield key >> 3, view[at + 2 : at + 2 + size]
                at += 2 + size
                continue
        kind = view[at] & 7  # the wire type is in the low bits of the first byte, however long the key is
        number, start, at = field_at(view, at, end)
        if kind == 2:
            yield number, view[start:at]
        elif kind == 0:
            yield number, varint(view, start, end)[0]
        else:
            yield number, int.from_bytes(view[start:at], "little")


def text(value: Value) -> str:
    """A string field."""
    return str(value, "utf-8", "replace") if isinstance(value, memoryview) else str(value)


def signed(value: Value) -> int:
    """An int64 field: the wire holds negative numbers as their 64-bit complement."""
    number = (int(value) if isinstance(value, int) else 0) & _ALL_BITS  # ten bytes can say more: it does not count
    return number - (1 << 64) if number >> 63 else number


def double(value: Value) -> float:
    """A double field, from the eight bytes that `fields` gave as an integer."""
    return float(struct.unpack("<d", (value if isinstance(value, int) else 0).to_bytes(8, "little"))[0])


def packed(value: Value) -> list[int]:
    """A repeated integer field, packed (one view) or single."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = varint(value, at, len(value))
        numbers.append(number)
    return numbers


class Message:
    """The fields of one message by their numbers; where one value is asked for, the last one counts."""

    __slots__ = ("_fields",)

    def __init__(self, raw: memoryview) -> None:
        self._fields: dict[int, list[Value]] = defaultdict(list)
        for key, value in fields(raw):
            self._fields[key].append(value)

    def number(self, key: int) -> int:
        """A number; 0 where it is not there."""
        value = self._fields.get(key, (0,))[-1]
        return value if isinstance(value, int) else 0

    def numbers(self, key: int) -> list[int]:
        """A repeated number."""
        return [number for value in self._fields.get(key, ()) for number in packed(value)]

    def text(self, key: int) -> str:
        """A string; empty where it is not there."""
        return text(self._fields[key][-1]) if key in self._fields else ""

    def texts(self, key: int) -> list[str]:
        """A repeated string."""
        return [text(value) for value in self._fields.get(key, ())]

    def one(self, key: int) -> Message | None:
        """A message inside; None where it is not there."""
        value = self._fields.get(key, (0,))[-1]
        return Message(value) if isinstance(value, memoryview) else None

    def all(self, key: int) -> Iterator[Message]:
        """Repeated messages inside."""
        return (Message(value) for value in self._fields.get(key, ()) if isinstance(value, memoryview))


def windows(block: Bytes, at: Int64) -> Words:
    """The eight bytes from each position on, as little-endian integers."""
    # A view with an item at every byte: numpy reads unaligned items faster than we could put two aligned ones together.
    every: Words = np.ndarray((len(block) - 7,), np.dtype("<u8"), buffer=block, strides=(1,))
    return every[np.minimum(at, len(block) - 8)]


_STOPS = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
_SIZES = np.uint64(0x0102030405060708)
_FOLDS = [
    (np.uint64(1 << 8), np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(1 << 16), np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(1 << 32), np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]


def unfolded(window: Words) -> tuple[Int64, Words]:
    """The varints at the low ends of windows, and the highest bit of the byte each ends in (0: it ends outside)."""
    stops = ~window & _STOPS
    stop = stops & (~stops + _ONE)  # the lowest byte without a continuation bit
    value = window & (stop - _ONE) & ~_STOPS
    longest = value.max(initial=np.uint64(0))
    for least, even, odd, shift in _FOLDS:
        if longest < least:  # no value of the column is that long
            break
        value = (value & even) | ((value & odd) >> shift)
    return value.view(np.int64), stop


def varints(block: Bytes, at: Int64) -> tuple[Int64, Int64]:
    """The varints at many positions: values (int64, negative where the wire says so) and sizes in bytes."""
    values, stop = unfolded(windows(block, at))
    size = (((stop >> np.uint64(7)) * _SIZES) >> np.uint64(56)).astype(np.int64)
    for row in np.flatnonzero(stop == 0):  # nine and ten bytes: hashes and negative numbers, rare in a column
        try:
            number, after = varint(block.data, int(at[row]), len(block))
            values[row], size[row] = signed(number), after - at[row]
        except CutError:
            values[row], size[row] = NONE, 1  # no number at all: damaged
    return values, size


def chain(block: Bytes, start: int, end: int, tag: int) -> tuple[Int64, Int64, int]:
    """Messages of one repeated field that follow each other: their starts and ends, and where we stopped.

    Each length must be read to find the next message, which is a loop per message. Many walkers therefore start
    in the middle of the block, at a guess; a wrong guess runs into the true chain within a message or two, because
    nested messages end where the outer ones do. A walker is believed only from where the true chain meets its path,
    and only as long as each message begins where the one before ended. The caller goes on where we stopped.
    """
    heads = None
    if end - start >= 4 * _CHUNK:
        tries = (_by_walkers(block, start, end, tag, overrun) for overrun in _OVERRUNS)
        heads = next((found for found in tries if found is not None), None)
    if heads is None:
        walked: list[int] = []
        at = start
        while 0 <= at < end and block[at] == tag:
            walked.append(at)
            at = _after(block, at, end)
        heads = np.array(walked, np.int64)
    return _whole(block, heads, start, end)


def _by_walkers(block: Bytes, start: int, end: int, tag: int, overrun: int) -> Int64 | None:
    """The heads of the chain, if every walker met it (it fails only in strange data)."""
    at = np.arange(start, end - _CHUNK, _CHUNK, dtype=np.int64)
    stop = np.append(at[1:], end)
    limit = np.minimum(stop + overrun, end)
    trails: list[Int64] = []
    while (live := at < limit).any():
        head = block.take(at, mode="clip") == tag
        size = block.take(at + 1, mode="clip").astype(np.int64)
        if size.max() >= 0x80:
            high = block.take(at + 2, mode="clip").astype(np.int64) << 7
            size = np.where(size < 0x80, size, (size & 0x7F) + high + 1)
        trails.append(np.where(head & live, at, NONE))
        at = at + np.where(head, size + 2, 1) * live
    paths = np.array(trails)
    own = np.zeros(len(block), np.bool_)
    own[paths[(paths >= 0) & (paths < stop)]] = True
    # Each walker goes on into the next one's stretch until it steps where that one has stepped: there it hands over.
    meets = (paths[:, :-1] >= stop[:-1]) & own[paths[:, :-1]]
    if not meets.any(axis=0).all():
        return None
    handed = np.take_along_axis(paths[:, :-1], meets.argmax(axis=0)[None], axis=0)[0]
    first, last = np.concatenate(([start], handed)), np.append(handed, end)
    return paths.T[((paths >= first) & (paths < last)).T]


def _after(block: Bytes, head: int, end: int) -> int:
    """Where the message that starts at `head` ends; -1 when it is not whole."""
    try:
        size, body = varint(block.data, head + 1, end)
    except CutError:
        return -1
    return body + size if body + size <= end else -1


def _whole(block: Bytes, heads: Int64, start: int, end: int) -> tuple[Int64, Int64, int]:
    """The messages up to the first that is not whole or is not followed by the next head."""
    size, width = varints(block, heads + 1)
    bodies = heads + 1 + width
    ends = bodies + size
    broken = np.flatnonzero((ends > end) | (ends < bodies) | (heads != np.concatenate(([start], ends))[:-1]))
    if len(broken):
        bodies, ends = bodies[: broken[0]], ends[: broken[0]]
    return bodies, ends, int(ends[-1]) if len(ends) else start
