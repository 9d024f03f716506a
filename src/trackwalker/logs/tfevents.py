"""TensorBoard event files, as far as triage needs them: which step was written when, how long it took.

A file is a row of records (length, its checksum, an Event message, its checksum). The last one may be cut: the writer
flushes every two minutes and a killed run leaves whatever had reached the disk.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trackwalker.logs.steps import Floats, Ints

_STEP_TIME = b"perf/step_time_seconds"
_TOKENS = b"perf/per_device_tokens_per_sec"
_TRAINING = (b"learning/", b"perf/", b"loss", b"train")  # evaluation has step numbers of its own
MOST_STEPS = 1 << 48  # no run has more: a larger number is damage
_LARGEST = 1 << 26  # a record larger than this is an embedded image or damage: the file is not read further
_FRONT, _BACK = 1 << 20, 4 << 20  # of a long run's file the middle is walked over, not decoded


@dataclass(frozen=True)
class EventSteps:
    """Training steps of event files, each with the time its scalars were written."""

    step: Ints
    written: Floats
    seconds: Floats
    tgs: Floats


def read_events(paths: list[Path]) -> EventSteps | None:
    """The training steps of some event files; a step written twice (a restart) keeps the later."""
    rows: dict[int, list[float]] = {}
    for path in sorted(paths):
        try:
            with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
                events = [event for body in _records(data) if (event := _event(body)) is not None]
        except (OSError, ValueError):  # gone, not ours to read, or empty
            continue
        for written, step, tag, value in events:
            if not tag.startswith(_TRAINING):
                continue
            row = rows.setdefault(step, [written, np.nan, np.nan])
            row[0] = max(row[0], written)
            if tag == _STEP_TIME:
                row[1] = value
            elif tag == _TOKENS:
                row[2] = value
    if not rows:
        return None
    steps = sorted(rows)
    columns = np.array([rows[s] for s in steps], float)
    return EventSteps(np.array(steps, np.int64), columns[:, 0], columns[:, 1], columns[:, 2])


def _records(data: mmap.mmap) -> Iterator[bytes]:
    at, length = 0, len(data)
    while at + 12 <= length:
        (size,) = struct.unpack_from("<Q", data, at)
        if size > _LARGEST or at + 16 + size > length:
            return
        if at < _FRONT or at > length - _BACK:
            yield data[at + 12 : at + 12 + size]
        at += 16 + size


def _event(body: bytes) -> tuple[float, int, bytes, float] | None:
    """(wall time, step, tag, value) of an event that holds one scalar."""
    written, step, tag, value = 0.0, 0, b"", np.nan
    try:
        for field, content in _fields(body):
            if field == 1 and isinstance(content, bytes):
                (written,) = struct.unpack("<d", content)
            elif field == 2 and isinstance(content, int):
                step = content
            elif field == 5 and isinstance(content, bytes):
                for _, item in _fields(content):
                    if isinstance(item, bytes):
                        tag, value = _value(item)
    except (IndexError, struct.error):
        return None
    sane = tag and step < MOST_STEPS and math.isfinite(written)  # damage can look like a message
    return (written, step, tag, value) if sane else None


def _value(item: bytes) -> tuple[bytes, float]:
    tag, value = b"", np.nan
    for field, content in _fields(item):
        if field == 1 and isinstance(content, bytes):
            tag = content
        elif field == 2 and isinstance(content, bytes) and len(content) == 4:
            (value,) = struct.unpack("<f", content)
        elif field == 8 and isinstance(content, bytes):  # TensorFlow 2 writes scalars as tensors
            for inner, data in _fields(content):
                if inner in (4, 5) and isinstance(data, bytes) and len(data) == 4:
                    (value,) = struct.unpack("<f", data)
    return tag, value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer message: numbers as int, everything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        size = {1: 8, 5: 4}.get(kind, -1)
        if size < 0:
            if kind != 2:
                raise IndexError(kind)
            size, at = _varint(data, at)
        if at + size > len(data):
            raise IndexError(size)
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError(at)
