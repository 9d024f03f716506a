"""W&B's offline files (`run-<id>.wandb`), as far as steps go: which step was logged when.

A file is a seven-byte header and blocks of 32 KiB; a record (checksum, length, kind, bytes) never crosses a block, a
long one comes in pieces. Each record is a message whose field 2, where it has one, is a row of the history: pairs of a
key and its value as JSON. The end may be cut: a killed run leaves whatever had reached the disk.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trackwalker.job.dialects import MOST_STEPS
from trackwalker.job.tfevents import fields
from trackwalker.logs.formats.tfevents import EventSteps, with_durations

_HEADER, _BLOCK = 7, 1 << 15
_MAGIC = b":W&B"
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_LARGEST = 1 << 28  # of a file that is read at all
_LONGEST = 1 << 24  # of one record
_HISTORY, _ITEM, _KEY, _NESTED, _VALUE = 2, 1, 1, 2, 16
_EVALUATION = ("eval", "val", "test")


def read_wandb(paths: list[Path]) -> EventSteps | None:
    """The training steps of W&B's offline files; a step logged twice keeps the later time."""
    rows: dict[int, float] = {}
    for path in sorted(paths):
        try:
            if path.stat().st_size > _LARGEST:
                continue
            data = path.read_bytes()
        except OSError:
            continue
        for record in _records(data):
            with contextlib.suppress(ValueError):  # damage
                for step, at in _steps(record):
                    rows[step] = max(at, rows.get(step, 0.0))
    if not rows:
        return None
    steps = sorted(rows)
    unknown = np.full(len(steps), np.nan)
    return with_durations(
        EventSteps(np.array(steps, np.int64), np.array([rows[s] for s in steps]), unknown, unknown.copy())
    )


def _records(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_MAGIC):
        return
    at, parts = _HEADER, b""
    while at + 7 <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < 7:  # too short for a record: the rest of the block is empty
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        body = data[at + 7 : at + 7 + size]
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(body) < size or size > left - 7:
            return
        at += 7 + size
        parts = body if kind in (_FULL, _FIRST) else parts + body
        if kind in (_FULL, _LAST):
            yield parts
        if len(parts) > _LONGEST:
            return


def _steps(record: bytes) -> Iterator[tuple[int, float]]:
    for number, row in fields(record):
        if number != _HISTORY or not isinstance(row, bytes):
            continue
        found: dict[str, object] = {}
        for inner, item in fields(row):
            if inner == _ITEM and isinstance(item, bytes):
                parts = list(fields(item))
                names = [v for n, v in parts if n in (_KEY, _NESTED) and isinstance(v, bytes) and v]
                value = next((v for n, v in parts if n == _VALUE and isinstance(v, bytes)), b"")
                found["/".join(name.decode("utf-8", "replace") for name in names)] = _value(value)
        step, at = found.get("_step"), found.get("_timestamp")
        told = [key for key in found if not key.startswith(("_", *_EVALUATION))]
        good = isinstance(step, int) and isinstance(at, int | float) and math.isfinite(at)
        if good and told and 0 <= int(str(step)) < MOST_STEPS:
            yield int(str(step)), float(str(at))


def _value(text: bytes) -> object:
    try:
        return json.loads(text[:64]) if len(text) <= 64 else None  # only two numbers of it are wanted
    except (ValueError, RecursionError):
        return None
