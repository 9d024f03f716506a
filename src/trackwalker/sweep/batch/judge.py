"""Which values of a batch sweep are still in the race, given how far equal runs lie apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trackwalker.stats.paired import student
from trackwalker.stats.selection import Noise, repeat_noise
from trackwalker.sweep.model import Done, Result

MOST_RUNS = 3  # of one value
MOST_CONTENDERS = 3
SMALL = 0.01  # a difference below this is worth no larger size
_SURE = 0.975
_APART = " "


@dataclass(frozen=True)
class Point:
    """One value of the varied setting, with what was fixed beside it."""

    name: str
    value: str
    fixed: tuple[tuple[str, str], ...] = ()

    def key(self, run: int) -> str:
        """The key of its k-th trial."""
        words = [f"{self.name}={self.value}", *(f"{k}={v}" for k, v in self.fixed)]
        return f"{_APART.join(words)}#{run}"

    @classmethod
    def read(cls, key: str) -> Point:
        """The point that a trial's key names."""
        first, *rest = (word.partition("=") for word in key.rpartition("#")[0].split(_APART))
        return cls(first[0], first[2], tuple((k, v) for k, _, v in rest))

    @property
    def label(self) -> str:
        """For tables."""
        return _APART.join([self.value, *(f"{k}={v}" for k, v in self.fixed)])


def results_of(point: Point, done: Done, most: int = MOST_RUNS) -> list[Result]:
    """What came of its runs, up to the k-th."""
    return [done[key] for run in range(1, most + 1) if (key := point.key(run)) in done]


def runs_of(point: Point, done: Done, most: int) -> list[float]:
    """The scores of its runs, up to the k-th."""
    return [r.score for r in results_of(point, done, most) if r.ok and r.score is not None]


def noise_of(points: Sequence[Point], done: Done, most: int = MOST_RUNS) -> Noise:
    """How far runs of the same value lie apart: from repetitions, and never less than a run's own interval says."""
    noise = repeat_noise([np.log(runs_of(p, done, most)) for p in points if runs_of(p, done, most)])
    own = [
        (r.high - r.low) / r.score / (2 * 1.96)
        for p in points
        for r in results_of(p, done, most)
        if r.ok and r.score and r.low is not None and r.high is not None
    ]
    within = float(np.median(own)) if own else 0.0
    return Noise(math.hypot(noise.sd, within), noise.freedom)


def mean(point: Point, done: Done, most: int = MOST_RUNS) -> float:
    """The mean score of its runs."""
    return float(np.mean(runs_of(point, done, most)))


def lead(a: Point, b: Point, done: Done, noise: Noise, most: int = MOST_RUNS) -> tuple[float, float]:
    """By how much a is faster than b, as a share, and how much of that noise alone could make."""
    each = 1 / len(runs_of(a, done, most)) + 1 / len(runs_of(b, done, most))
    return mean(a, done, most) / mean(b, done, most) - 1, noise.sd * math.sqrt(each) * student(_SURE, noise.freedom)


def contenders(points: Sequence[Point], done: Done, most: int) -> list[Point]:
    """Those that could be the fastest by their first runs; nobody where one is clearly ahead.

    A value that failed in a later run is no contender: what is recommended has to run every time.
    """
    ran = [p for p in points if runs_of(p, done, most) and all(r.ok for r in results_of(p, done, most))]
    if len(ran) < 2:
        return []
    noise = noise_of(points, done, most)
    best = max(ran, key=lambda p: mean(p, done, most))
    close = [p for p in ran if p == best or _close(best, p, done, noise, most)]
    close = sorted(close, key=lambda p: -mean(p, done, most))[:MOST_CONTENDERS]
    return [p for p in points if p in close] if len(close) > 1 else []


def _close(best: Point, other: Point, done: Done, noise: Noise, most: int) -> bool:
    ahead, by_luck = lead(best, other, done, noise, most)
    return ahead <= by_luck
