"""Series that rise all along, as against those that jump, fill up and stay, or only wander."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackwalker.stats.medians import median
from trackwalker.stats.segments import Floats, robust_sigma

_BLOCKS = 12
_RISING = 0.75  # of the steps from block to block: what grows all along grows nearly everywhere
_SURE = 4.0  # standard errors
_STILL = 0.3  # of the usual pace, in the last quarter: what fills up and then stays is no leak


@dataclass(frozen=True)
class Trend:
    """A steady rise: units per second with its standard error, the level at the end, and how high peaks are above."""

    slope: float
    error: float
    level: float
    grown: float
    peak: float = 0.0

    def until(self, limit: float) -> float:
        """Seconds from the end until a peak reaches a limit at this pace."""
        return max(0.0, limit - self.level - self.peak) / self.slope


def steady_rise(times: Floats, values: Floats) -> Trend | None:
    """The trend of a series that rises all along; None for one that jumps, fills up and stays, or only wanders.

    Medians of blocks, so that saves and single samples do not count; the median of their steps, so that a copy that
    is kept after the first save is one step of many.
    """
    known = np.isfinite(values)
    times, values = times[known], values[known]
    if len(values) < 2 * _BLOCKS:
        return None
    parts = np.array_split(np.arange(len(values)), _BLOCKS)
    levels = np.array([median(values[p]) for p in parts])
    centres = np.array([float(np.mean(times[p])) for p in parts])
    pace = np.diff(levels) / np.diff(centres)
    slope = median(pace)
    error = 1.253 * robust_sigma(pace) / np.sqrt(len(pace))  # of a median, against that of a mean
    lasting = float(np.mean(pace > 0.1 * slope)) >= _RISING and median(pace[-3:]) >= _STILL * slope
    if slope <= 0 or slope < _SURE * error or not lasting:
        return None
    level = float(levels[-1])
    late = np.concatenate(parts[-_BLOCKS // 4 :])
    above = values[late] - (level + slope * (times[late] - centres[-1]))
    return Trend(slope, float(error), level, float(level - levels[0]), max(0.0, float(above.max())))
