"""TensorBoard event files, as far as triage needs them: which step was written when, how long it took.

A file is a row of records (length, its checksum, an Event message, its checksum). The last one may be cut: the writer
flushes every two minutes and a killed run leaves whatever had reached the disk.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trackwalker.job.dialects import MOST_STEPS
from trackwalker.job.tfevents import decode_event
from trackwalker.logs.scanning.steps import Floats, Ints

_STEP_TIME = "perf/step_time_seconds"
_TOKENS = "perf/per_device_tokens_per_sec"
_TRAINING = ("learning/", "perf/", "loss", "train")  # evaluation has step numbers of its own
_LARGEST = 1 << 26  # a record larger than this is an embedded image or damage: the file is not read further
_LEAST_STEPS = 3
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
                scalars = [scalar for body in _records(data) for scalar in decode_event(body) or ()]
        except (OSError, ValueError):  # gone, not ours to read, or empty
            continue
        for scalar in scalars:
            # Damage can look like a message.
            if not scalar.tag.startswith(_TRAINING) or not 0 <= scalar.step < MOST_STEPS:
                continue
            row = rows.setdefault(scalar.step, [scalar.wall_time, np.nan, np.nan])
            row[0] = max(row[0], scalar.wall_time)
            if scalar.tag == _STEP_TIME:
                row[1] = scalar.value
            elif scalar.tag == _TOKENS:
                row[2] = scalar.value
    if not rows:
        return None
    steps = sorted(rows)
    columns = np.array([rows[s] for s in steps], float)
    return with_durations(EventSteps(np.array(steps, np.int64), columns[:, 0], columns[:, 1], columns[:, 2]))


def with_durations(told: EventSteps) -> EventSteps:
    """Where no step says how long it took, the time since the one before it says so; nothing does of the first."""
    if np.isfinite(told.seconds).any() or len(told.step) < _LEAST_STEPS:
        return told
    passed = np.diff(told.written) / np.maximum(np.diff(told.step), 1)
    return replace(told, seconds=np.concatenate([[np.nan], np.where(passed > 0, passed, np.nan)]))


def _records(data: mmap.mmap) -> Iterator[bytes]:
    at, length = 0, len(data)
    while at + 12 <= length:
        (size,) = struct.unpack_from("<Q", data, at)
        if size > _LARGEST or at + 16 + size > length:
            return
        if at < _FRONT or at > length - _BACK:
            yield data[at + 12 : at + 12 + size]
        at += 16 + size
