"""Where to look next for the best size between too small and out of memory, from what was seen so far."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_FINE = 8  # sizes closer than an eighth are not told apart
_WIDE = 0.3  # of the best size: a gap beside it that is wider is looked into
_BELOW = 0.75  # of the best size: something at most so large has to be known, or the way down is
_DOWN, _FAR_DOWN = 2 / 3, 1 / 2


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
    if right is None and ceiling is None and (larger := space.snap(best * space.growth)) > best:
        return larger
    if not any(s <= _BELOW * best for s in sizes):
        # Before the ceiling is looked for any closer: the fastest may be far below it.
        smaller = space.snap(best * (_FAR_DOWN if sum(s > best for s in sizes) > 1 else _DOWN))
        if smaller < best and smaller != left:
            return smaller
    if right is None and ceiling is not None and ceiling - best > space.fine(best):
        middle = space.snap((best + ceiling) / 2)
        if best < middle < ceiling:
            return middle
    return _between(space, scores, best, left, right)


def _between(space: Space, scores: Mapping[int, float], best: int, left: int | None, right: int | None) -> int | None:
    """Both sides of the fastest are known: into a wide gap beside it, then where a parabola has its top."""
    near = [s for s in (left, best, right) if s is not None]
    if len(near) < 3:
        near = sorted(sorted(scores, key=lambda s: abs(s - best))[:3])
    top = _top(near, [scores[s] for s in near], best) if len(near) == 3 else float(best)
    towards = right if right is not None and (top >= best or left is None) else left
    if towards is None:
        return None
    if abs(towards - best) > max(_WIDE * best, space.fine(best)):
        return space.snap((best + towards) / 2)
    wanted = space.snap(top)
    known = min(abs(wanted - s) for s in scores)
    return wanted if known >= space.fine(best) and min(near) < wanted < max(near) else None


def _top(x: list[int], y: list[float], best: int) -> float:
    """Where the parabola through three points is highest; the best point where it has no top."""
    (x1, x2, x3), (y1, y2, y3) = x, y
    slope, later = (y2 - y1) / (x2 - x1), (y3 - y2) / (x3 - x2)
    bend = (later - slope) / (x3 - x1)
    return (x1 + x2) / 2 - slope / (2 * bend) if bend < 0 else float(best)
