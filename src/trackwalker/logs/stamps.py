"""When a step line was written, for trainers that print a time and no duration."""

from __future__ import annotations

import re
from calendar import timegm

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_STAMP = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_AT_FRONT = 120  # characters: a date further back is part of a text


def written_at(text: str) -> float:
    """Seconds since the epoch of a line's own time, read as UTC; nan where it has none."""
    match = _STAMP.search(text, 0, _AT_FRONT)
    if match is None:
        return float("nan")
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    return timegm((year, month, day, hour, minute, second)) + float(f"0.{match[7] or 0}")


def durations(step: NDArray[np.int64], written: Floats) -> Floats:
    """Seconds a step took by the times of consecutive lines; where lines skip steps, the mean of those between.

    The first line has none before it and is given the next one's; a line that repeats or goes back tells nothing.
    """
    out = np.full(len(step), np.nan)
    if len(step) < 2:
        return out
    steps, seconds = np.diff(step), np.diff(written)
    told = (steps > 0) & (seconds > 0)
    out[1:][told] = seconds[told] / steps[told]
    out[0] = out[1]
    return out
