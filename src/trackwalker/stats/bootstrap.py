"""Intervals by resampling: what a mean or a difference could have been, without a model of the noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trackwalker.stats.segments import Floats

LEVEL = 0.95
_DRAWS = 1000
_MOST_POINTS = 1000
_SEED = 20240917  # the same input gives the same interval


def mean_interval(values: Floats, level: float = LEVEL) -> tuple[float, float]:
    """Where the mean lies; blocks of neighbours are drawn together, so that noise with a memory is not underrated."""
    x = np.asarray(values, float)
    if len(x) < 2:
        only = float(x[0]) if len(x) else float("nan")
        return only, only
    return _quantiles(_draw(x, np.random.default_rng(_SEED)), level)


def difference_interval(a: Floats, b: Floats, level: float = LEVEL) -> tuple[float, float]:
    """Where the mean of b minus the mean of a lies; both are drawn independently."""
    rng = np.random.default_rng(_SEED)
    drawn = [_draw(np.asarray(x, float), rng) for x in (a, b)]
    return _quantiles(drawn[1] - drawn[0], level)


def _draw(x: Floats, rng: np.random.Generator) -> Floats:
    x = _means_of_neighbours(x)
    n = len(x)
    if n == 0:
        return np.full(_DRAWS, np.nan)
    width = block_length(x)
    blocks = -(-n // width)
    starts: NDArray[np.int64] = rng.integers(0, n, (_DRAWS, blocks))
    at = (starts[:, :, None] + np.arange(width)).reshape(_DRAWS, -1)[:, :n] % n  # the series closed to a ring
    return np.asarray(x[at].mean(axis=1), float)


def _means_of_neighbours(x: Floats) -> Floats:
    """A long series as the means of equal stretches: their spread is the mean's, and memory stays bounded."""
    width = len(x) // _MOST_POINTS
    return x[: len(x) // width * width].reshape(-1, width).mean(axis=1) if width > 1 else x


def block_length(x: Floats) -> int:
    """How many neighbours belong together: one for white noise, more where a value resembles the one before."""
    n = len(x)
    d = x - x.mean()
    squares = float(d @ d)
    if squares == 0.0 or n < 8:
        return 1
    memory = min(max(float(d[1:] @ d[:-1]) / squares, 0.0), 0.9)
    if memory < 2.0 / np.sqrt(n):  # no more than white noise shows
        return 1
    ideal = (2.0 * memory / (1.0 - memory**2)) ** (2.0 / 3.0) * n ** (1.0 / 3.0)  # for a first-order memory
    return int(min(max(round(ideal), 1), max(n // 4, 1)))


def _quantiles(draws: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
