"""Where to look next for the best size between too small and out of memory, from what was seen so far."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_FINE = 8  # sizes closer than an eighth are not told apart
_WIDE = 0.35  # of the best size: a gap beside it that is wider is looked into
_DOWN = 2 / 3


@dataclass(frozen=True)
class Space:
    """The sizes that may be tried, and how."""

    start: int
    low: int = 1
    high: int | None = None
    step: int = 1  # sizes are multiples of it
    growth: float = 2.0  # upwards, as long as nothing is known about the ceiling
    most: int = 10  # sizes tried

    def snap(self, value: float) -> int:
        """The nearest size that may be tried."""
        lowest = math.ceil(self.low / self.step) * self.step
        size = max(round(value / self.step) * self.step, lowest)
        return min(size, self.high // self.step * self.step) if self.high is not None else size

    def fine(self, value: float) -> float:
        """Differences below this are not worth a job."""
        return max(float(self.step), value / _FINE)


def next_size(
    space: Space, scores: Mapping[int, float], bounds: Mapping[int, bool], lost: Collection[int] = ()
) -> int | None:
    """The next size to try, None when there is nothing more to learn.

    `scores`: sizes that ran. `bounds`: sizes that are too large; true where even the weights did not fit, so that
    halving is a waste. `lost`: sizes that failed for another reason, which say nothing.
    """
    tried = {*scores, *bounds, *lost}
    if len(tried) >= space.most:
        return None
    wanted = _wanted(space, scores, bounds) if tried else space.snap(space.start)
    return wanted if wanted is not None and wanted not in tried else None


def _wanted(space: Space, scores: Mapping[int, float], bounds: Mapping[int, bool]) -> int | None:
    ceiling = min(bounds, default=None)
    if not scores:
        if ceiling is None:
            return None
        return space.snap(space.low if bounds[ceiling] else ceiling / 2)
    sizes = sorted(scores)
    best = max(sizes, key=lambda s: (scores[s], -s))
    left = max((s for s in sizes if s < best), default=None)
    right = min((s for s in sizes if s > best), default=None)
    if right is None and (up := _up(space, best, ceiling)) is not None:
        return up
    if left is None and (down := space.snap(best * _DOWN)) < best:
        return down
    return _between(space, scores, best, left, right)


def _up(space: Space, best: int, ceiling: int | None) -> int | None:
    """The fastest so far is also the largest that ran: further up, or half-way to what did not."""
    if ceiling is None:
        larger = space.snap(best * space.growth)
        return larger if larger > best else None
    middle = space.snap((best + ceiling) / 2)
    return middle if ceiling - best > space.fine(best) and best < middle < ceiling else None


def _between(space: Space, scores: Mapping[int, float], best: int, left: int | None, right: int | None) -> int | None:
    """The fastest lies between slower ones: where a parabola through three has its top, unless that is known well."""
    near = sorted(sorted(scores, key=lambda s: abs(s - best))[:3]) if None in (left, right) else [left, best, right]
    points = [s for s in near if s is not None]
    if len(points) < 3:
        return None
    top = _top(points, [scores[p] for p in points], best)
    other = right if top >= best else left
    if other is None:
        return None
    if abs(other - best) > max(_WIDE * best, space.fine(best)):
        return space.snap((best + other) / 2)
    wanted = space.snap(top)
    known = min(abs(wanted - s) for s in scores)
    return wanted if known >= space.fine(best) and min(points) < wanted < max(points) else None


def _top(x: list[int], y: list[float], best: int) -> float:
    """Where the parabola through three points is highest; the best point where it has no top."""
    (x1, x2, x3), (y1, y2, y3) = x, y
    slope, later = (y2 - y1) / (x2 - x1), (y3 - y2) / (x3 - x2)
    bend = (later - slope) / (x3 - x1)
    return (x1 + x2) / 2 - slope / (2 * bend) if bend < 0 else float(best)
