"""Prometheus' write-ahead log as bytes: is a bad spot just the torn end of a killed writer, and what can be saved?

A segment is a row of 32 KiB pages. A page holds fragments, each with a 7-byte header: type, length, CRC-32C. A record
is one `full` fragment, or `first`, any number of `middle`, and `last`. A zero byte says that the page ends here.
Prometheus' own repair throws away everything behind the first bad spot; here only the bad records are taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

PAGE = 32 * 1024
_HEADER = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BLOCK = 256
_U32 = npt.NDArray[np.uint32]
_TYPE_BITS = 0b111  # the higher bits say how the data are compressed


@dataclass(frozen=True)
class Fragment:
    """Where a fragment lies in its segment; `ok` is False where the header cannot be, or data are missing."""

    start: int
    end: int
    kind: int
    ok: bool = True


def fragments(data: bytes) -> list[Fragment]:
    """Every fragment by its header; after an impossible header the rest of its page is one bad fragment."""
    found = []
    for page in range(0, len(data), PAGE):
        end = min(page + PAGE, len(data))
        at = page
        while at < end and data[at]:
            kind = data[at] & _TYPE_BITS
            stop = at + _HEADER + int.from_bytes(data[at + 1 : at + 3], "big")
            if kind > _LAST or stop > end:
                found.append(Fragment(at, end, kind, ok=False))
                break
            found.append(Fragment(at, stop, kind))
            at = stop
    return found


def torn_at_end(page: bytes) -> bool:
    """Whether a bad last page is just unfinished, its writer killed or still at work: nothing good follows the bad."""
    found = fragments(page)
    good = _intact(page, found)
    return True not in good[good.index(False) :] if False in good else True


def salvage(segment: Path, newest: bool) -> int:
    """Rewrite a segment without its unreadable records; returns how many bytes of them were damaged.

    The unfinished end of the newest segment is taken out too, but is no damage.
    """
    data = segment.read_bytes()
    found = fragments(data)
    good = _intact(data, found)
    keep = _whole_records(found, good)
    kept = set(keep)
    if len(kept) == len(found):
        return 0
    segment.write_bytes(_pages(data, keep))
    lost = [f for f in found if f not in kept]
    if newest:
        end = keep[-1].end if keep else 0
        last_page = (len(data) - 1) // PAGE * PAGE
        bad = [f for f, fine in zip(found, good, strict=True) if not fine and f.start >= end]
        if all(f.start >= last_page for f in bad):
            lost = [f for f in lost if f.start < end]
    return sum(f.end - f.start for f in lost)


def crc32c(data: bytes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """CRC-32C of many slices at once, as no checksum library is at hand and pure Python would take minutes.

    A slice is an odd head and then blocks of equal size. Byte k of every block is one step; the blocks' sums are then
    chained, which works because the CRC of a block does not depend on what came before, only its place does.
    """
    raw = np.frombuffer(data, np.uint8)
    head, count = lengths % _BLOCK, lengths // _BLOCK
    crc = np.full(len(starts), 0xFFFFFFFF, np.uint32)
    for k in range(int(head.max(initial=0))):
        has = head > k
        crc[has] = _step(crc[has], raw[starts[has] + k])
    begin = np.cumsum(count) - count
    nth = np.arange(count.sum()) - np.repeat(begin, count)
    at = np.repeat(starts + head, count) + nth * _BLOCK
    sums = np.zeros(len(at), np.uint32)
    for k in range(_BLOCK if len(at) else 0):
        sums = _step(sums, raw[at + k])
    for k in range(int(count.max(initial=0))):
        has = count > k
        crc[has] = _behind_block(crc[has]) ^ sums[begin[has] + k]
    return ~crc


def _step(crc: _U32, byte: npt.NDArray[np.uint8]) -> _U32:
    out: _U32 = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> np.uint32(8))
    return out


def _behind_block(crc: _U32) -> _U32:
    """What a sum becomes by a block of zeros: linear, so looked up for each of its four bytes."""
    out: _U32 = _ZEROS[0][crc & 0xFF] ^ _ZEROS[1][crc >> 8 & 0xFF] ^ _ZEROS[2][crc >> 16 & 0xFF] ^ _ZEROS[3][crc >> 24]
    return out


def _crc_table() -> _U32:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


def _zero_tables() -> list[_U32]:
    table = np.concatenate([np.arange(256, dtype=np.uint32) << np.uint32(8 * j) for j in range(4)])
    for _ in range(_BLOCK):
        table = _step(table, np.zeros(len(table), np.uint8))
    return np.split(table, 4)


_TABLE = _crc_table()
_ZEROS = _zero_tables()


def _intact(data: bytes, found: list[Fragment]) -> list[bool]:
    """For each fragment whether it is whole and its checksum is right."""
    whole = [f for f in found if f.ok]
    starts = np.array([f.start + _HEADER for f in whole], np.int64)
    ends = np.array([f.end for f in whole], np.int64)
    said = [int.from_bytes(data[f.start + 3 : f.start + _HEADER], "big") for f in whole]
    right = crc32c(data, starts, ends - starts) == np.array(said, np.uint32)
    verdicts = iter(right.tolist())
    return [f.ok and next(verdicts) for f in found]


def _whole_records(found: list[Fragment], good: list[bool]) -> list[Fragment]:
    keep: list[Fragment] = []
    pending: list[Fragment] = []
    for fragment, fine in zip(found, good, strict=True):
        if not fine:
            pending = []
        elif fragment.kind == _FULL:
            keep.append(fragment)
            pending = []
        elif fragment.kind == _FIRST:
            pending = [fragment]
        elif pending:
            pending.append(fragment)
            if fragment.kind == _LAST:
                keep += pending
                pending = []
    return keep


def _pages(data: bytes, keep: list[Fragment]) -> bytes:
    """The kept fragments, each in the page it was in, as a fragment must not cross into the next."""
    out = bytearray(len(data))
    page, at = -1, 0
    for fragment in keep:
        if fragment.start // PAGE != page:
            page = fragment.start // PAGE
            at = page * PAGE
        size = fragment.end - fragment.start
        out[at : at + size] = data[fragment.start : fragment.end]
        at += size
    return bytes(out)
