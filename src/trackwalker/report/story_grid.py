"""The host lanes of a story as one table, hosts x columns of the time axis: what a picture of many hosts is made of."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trackwalker.diagnose.story import Lane
from trackwalker.report.plots import Scale

Floats = npt.NDArray[np.float64]

COLUMNS = 224  # four units of the drawing each


def cells(lanes: list[Lane], x: Scale) -> Floats:
    """The mean of every host in every column; NaN where nothing was recorded."""
    out = np.full((len(lanes), COLUMNS), np.nan)
    for i, lane in enumerate(lanes):
        size = min(len(lane.times), len(lane.values))
        times = np.array(lane.times[:size], np.float64)
        values = np.array([np.nan if v is None else v for v in lane.values[:size]], np.float64)
        good = np.isfinite(times) & np.isfinite(values) & (np.abs(values) < 1e150) & (times >= x.lo) & (times <= x.hi)
        at = ((times[good] - x.lo) / (x.hi - x.lo) * (COLUMNS - 1e-6)).astype(np.int64)
        count = np.bincount(at, minlength=COLUMNS)
        there = count > 0
        out[i, there] = np.bincount(at, values[good], COLUMNS)[there] / count[there]
        if len(at) > 1:  # fewer samples than columns: a sample stands for the time until the next one
            apart = float(np.median(np.diff(np.sort(times[good])))) / (x.hi - x.lo) * COLUMNS
            _fill(out[i], math.ceil(apart))
    return out


def _fill(row: Floats, apart: int) -> None:
    for _ in range(min(apart, COLUMNS) - 1):
        empty = np.isnan(row)
        empty[0] = False
        row[empty] = row[np.flatnonzero(empty) - 1]
