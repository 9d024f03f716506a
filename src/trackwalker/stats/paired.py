"""Two runs step by step: by how much they differ, how sure that is, and what difference could have hidden.

And of samples that are no pairs, intervals by resampling, without a model of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from trackwalker.stats.segments import Floats, Segment, segments

FEWEST = 12  # steps: fewer say nothing about a difference of a few per cent
LEVEL = 0.95
_POWER = 0.9
_BATCHES = 8
_MOST_MEMORY = 0.95
_EXPLAINED = 0.8  # share of the variance that phases must account for, or they are wandering noise


@dataclass(frozen=True)
class Difference:
    """The relative difference of B's speed to A's (-0.01: B is 1 % slower) with what its interval is made of."""

    logs: float  # mean of the logarithms' differences
    error: float  # standard error of that mean, memory of the noise included
    freedom: float  # degrees of freedom behind the error
    steps: int
    phases: tuple[Segment, ...] = ()  # stretches with different levels of the ratio, when there are several

    @property
    def change(self) -> float:
        """B against A."""
        return float(np.expm1(self.logs))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Where the true difference lies."""
        half = self.error * student(0.5 + level / 2, self.freedom)
        return float(np.expm1(self.logs - half)), float(np.expm1(self.logs + half))

    def differs(self, level: float = LEVEL) -> bool:
        """Whether the interval leaves zero out."""
        low, high = self.interval(level)
        return low > 0 or high < 0

    @property
    def detectable(self) -> float:
        """The smallest relative difference that would have been seen nine times in ten."""
        return float(np.expm1(self.error * (student(0.5 + LEVEL / 2, self.freedom) + student(_POWER, self.freedom))))

    def within(self, margin: float) -> bool:
        """Whether the two are the same for all purposes: the whole interval lies inside the margin."""
        low, high = self.interval(0.9)  # two one-sided tests at 5 %
        return -margin < low and high < margin


def paired(a: Floats, b: Floats) -> Difference | None:
    """Compare two series of speeds of the same steps; None where too few are known of both."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    good = np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)
    if good.sum() < FEWEST:
        return None
    logs = np.log(b[good] / a[good])
    mean, error, freedom, phases = _level(logs)
    return Difference(mean, error, freedom, len(logs), phases)


def unpaired(a: Floats, b: Floats) -> Difference | None:
    """Compare two series of speeds that share no steps: noise common to both cannot cancel."""
    sides = []
    for values in (np.asarray(a, dtype=float), np.asarray(b, dtype=float)):
        good = values[np.isfinite(values) & (values > 0)]
        if len(good) < FEWEST:
            return None
        sides.append((_level(np.log(good)), len(good)))
    ((mean_a, error_a, free_a, _), n_a), ((mean_b, error_b, free_b, _), n_b) = sides
    error = float(np.hypot(error_a, error_b))
    if error == 0.0:
        return Difference(mean_b - mean_a, 0.0, float(n_a + n_b - 2), min(n_a, n_b))
    freedom = error**4 / max(error_a**4 / free_a + error_b**4 / free_b, 1e-300)  # Welch and Satterthwaite
    return Difference(mean_b - mean_a, error, freedom, min(n_a, n_b))


def mean_error(x: Floats) -> tuple[float, float]:
    """Standard error of a mean and its degrees of freedom, for noise that remembers what it was a step ago.

    The wider of two: a first-order memory fitted to the series (good for short ones), and the spread of the means of
    eight batches (which needs no model). Each alone is too narrow somewhere; together a 95 % interval
    covers at least 93 % for memories up to 0.5 from 20 steps on and up to 0.8 from 150 steps on (see the tests).
    """
    n = len(x)
    d = x - x.mean()
    squares = float(d @ d)
    if squares == 0.0:
        return 0.0, float(n - 1)
    memory = float(d[1:] @ d[:-1]) / squares
    memory = min(max(memory + (1.0 + 3.0 * memory) / n, 0.0), _MOST_MEMORY)  # the usual estimate is too low
    inflation = (1.0 + memory) / (1.0 - memory)
    variance = squares / n / max(1.0 - inflation / n, 0.25)
    fitted = (float(np.sqrt(variance * inflation / n)), max(n / inflation - 1.0, 3.0))
    means = np.array([part.mean() for part in np.array_split(x, _BATCHES)])
    batched = (float(means.std(ddof=1) / np.sqrt(_BATCHES)), _BATCHES - 1.0)
    return max(fitted, batched, key=lambda e: e[0] * student(0.5 + LEVEL / 2, e[1]))


def _level(logs: Floats) -> tuple[float, float, float, tuple[Segment, ...]]:
    """Mean, its error and freedom, and the phases: a change of level is part of the answer, not of its noise."""
    phases = segments(np.exp(logs))
    if len(phases) > 1:
        rest = np.concatenate([logs[p.start : p.end] - logs[p.start : p.end].mean() for p in phases])
        if float(rest.var()) <= (1.0 - _EXPLAINED) * float(logs.var()):
            error, freedom = mean_error(rest)
            return float(logs.mean()), error, freedom, tuple(phases)
    error, freedom = mean_error(logs)
    return float(logs.mean()), error, freedom, ()


def student(p: float, freedom: float) -> float:
    """Student's t by its expansion around the normal: within 1 % from three degrees of freedom on."""
    z, v = NormalDist().inv_cdf(p), max(freedom, 3.0)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**i for i, term in enumerate(terms, 1))


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
