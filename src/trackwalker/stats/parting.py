"""Two curves that should be one: from where on they are not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackwalker.stats.segments import Floats, robust_sigma, running_median

_FEWEST_BEFORE = 10  # points of agreement
_FEWEST_AFTER = 8  # points apart, up to the end
_NARROWEST, _WIDEST = 5, 25  # points that are smoothed over: an eighth of the curve within these
_SIGMAS = 6.0
_LEAST = 0.008  # relative: rounding and the order of sums move a loss less
_RUNS_TOGETHER = 0.6  # of the points before the parting lie within the noise


@dataclass(frozen=True)
class Parting:
    """Where two curves part for good; `at` is 0 when they were never together."""

    at: int
    size: float  # b - a at the end, smoothed
    noise: float  # of a single difference before


def parting(a: Floats, b: Floats) -> Parting | None:
    """The first point from which b stays on one side of a, beyond noise, to the end; None when they stay together."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    n = len(a)
    if n < _FEWEST_BEFORE + _FEWEST_AFTER:
        return None
    d = b - a
    digits = float(np.min(np.abs(np.diff(a))[np.abs(np.diff(a)) > 0], initial=np.inf))
    rounding = digits if np.isfinite(digits) and digits < 0.02 * float(np.median(np.abs(a))) else 0.0
    noise = max(robust_sigma(np.diff(d)) / np.sqrt(2.0), 0.5 * min(rounding, 1e-3), 1e-9)
    width = min(max(n // 8, _NARROWEST), _WIDEST)
    smooth = running_median(d, width)
    limit = np.maximum(_SIGMAS * noise * 1.25 / np.sqrt(width), _LEAST * np.abs(a))
    far = np.abs(smooth) > limit
    same = far & (np.sign(smooth) == np.sign(smooth[-1]))
    if not same[-1]:
        return None
    together = np.flatnonzero(~same)
    since = int(together[-1]) + 1 if len(together) else 0
    if n - since < _FEWEST_AFTER:
        return None
    size = float(np.median(d[-_FEWEST_AFTER:]))
    if since < _FEWEST_BEFORE or np.mean(np.abs(smooth[:since]) <= limit[:since]) < _RUNS_TOGETHER:
        return Parting(0, size, noise)
    # A slow departure passes the limit late: go back to the last point that is still within the noise.
    back = np.abs(d) <= 3.0 * noise
    before = np.flatnonzero(back[:since])
    return Parting(int(before[-1]) + 1 if len(before) else since, size, noise)
