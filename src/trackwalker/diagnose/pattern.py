"""The shape of a run's speed: constant, one drop, phases, a slow slide, periodic or single slow steps (spec 2.12)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trackwalker.stats.segments import Segment, robust_sigma, segments

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEWEST = 20  # steps: less says nothing about a trend
_FEWEST_LEFT = 15  # when the mask leaves less, nearly every step is a save: then they are the run
_LASTING = 0.03  # relative: a smaller shift is reported by comparisons, which have a control
_SPIKE = 1.5  # times the level


@dataclass(frozen=True)
class Pattern:
    """What the step times look like; levels are medians of seconds per step."""

    name: str  # constant, constant-drop, phased, gradual, periodic, blip, slow-from-start, too-short
    says: str
    level_s: float | None = None
    slow_s: float | None = None
    change: float | None = None  # of throughput, negative when it fell
    from_step: int | None = None
    to_step: int | None = None
    period: int | None = None


def pattern_of(steps: Ints, seconds: Floats, masked: NDArray[np.bool_] | None = None) -> Pattern:
    """Name the shape; masked steps (saves, compilation, profiler, the first ones) say nothing about it."""
    known = np.isfinite(seconds) & (seconds > 0)
    if known.sum() < _FEWEST:
        return Pattern("too-short", f"{int(known.sum())} timed steps are too few for a trend")
    keep = known if masked is None else known & ~masked
    if keep.sum() < _FEWEST_LEFT:
        keep = known
    steps, seconds = steps[keep], seconds[keep]
    level = float(np.median(seconds))
    gradual = _gradual(steps, seconds, level)
    cuts = segments(seconds)
    levels = [c.level for c in cuts]
    if gradual is not None and (len(cuts) == 1 or _is_staircase(levels)):
        return gradual
    if len(cuts) > 1:
        return _phases(steps, cuts)
    return _spikes(steps, seconds, level)


def _gradual(steps: Ints, seconds: Floats, level: float) -> Pattern | None:
    """A slide: block medians that rise together, without one jump that explains it."""
    blocks = 12
    n = len(seconds) // blocks
    if n < 3:
        return None
    medians = np.median(seconds[: n * blocks].reshape(blocks, n), axis=1)
    rises = np.diff(medians)
    total = float(medians[-1] - medians[0])
    noise = robust_sigma(seconds) / np.sqrt(n)
    enough = abs(total) > max(_LASTING * level, 6.0 * min(noise, abs(total)))
    one_jump = float(np.max(np.abs(rises))) > 0.4 * abs(total)
    same_way = float(np.mean(np.sign(rises) == np.sign(total)))
    if not enough or one_jump or same_way < 0.85 or total < 0:
        return None
    change = float(medians[0] / medians[-1] - 1.0)
    says = f"slows down little by little, {medians[0]:.3g} to {medians[-1]:.3g} s a step ({100 * change:+.0f} %)"
    return Pattern(
        "gradual", says, float(medians[0]), float(medians[-1]), round(change, 4), int(steps[0]), int(steps[-1])
    )


def _is_staircase(levels: list[float]) -> bool:
    return len(levels) >= 3 and all(b > a for a, b in pairwise(levels))


def _phases(steps: Ints, cuts: list[Segment]) -> Pattern:
    total = sum(c.size for c in cuts)
    lasting = [c for c in cuts if c.size >= min(0.15 * total, 50)] or cuts
    fast = min(c.level for c in lasting)
    slow = [c for c in cuts if c.level > fast * (1 + _LASTING)]
    if not slow:
        return Pattern("constant", f"steady at {fast:.3g} s a step", fast)
    worst = max(c.level for c in slow)
    change = fast / worst - 1.0
    first, last = slow[0], slow[-1]
    where = (int(steps[first.start]), int(steps[last.end - 1]))
    numbers = f"{fast:.3g} to {worst:.3g} s a step ({100 * change:+.0f} % throughput)"
    back_and_forth = any(
        a.level > fast * (1 + _LASTING) and b.level <= fast * (1 + _LASTING) for a, b in pairwise(cuts)
    )
    if not back_and_forth and len({round(c.level / fast, 1) for c in slow}) <= 1:
        says = f"drops once at step {where[0]} and stays: {numbers}"
        return Pattern("constant-drop", says, fast, worst, round(change, 4), *where)
    says = f"{len(slow)} slow phases between steps {where[0]} and {where[1]}: {numbers}"
    return Pattern("phased", says, fast, worst, round(change, 4), *where)


def _spikes(steps: Ints, seconds: Floats, level: float) -> Pattern:
    at = steps[seconds > _SPIKE * level]
    if not len(at):
        return Pattern("constant", f"steady at {level:.3g} s a step", level)
    worst = float(seconds[seconds > _SPIKE * level].max())
    gaps = np.diff(at)
    if len(at) >= 3:
        period = int(np.median(gaps))
        if period > 1 and float(np.mean(np.abs(gaps / period - np.round(gaps / period)) * period <= 1.0)) > 0.8:
            says = f"a slow step about every {period} steps (up to {worst:.3g} s against {level:.3g} s)"
            return Pattern("periodic", says, level, worst, None, int(at[0]), int(at[-1]), period)
    says = (
        f"{len(at)} single slow step{'s' if len(at) > 1 else ''} (up to {worst:.3g} s), otherwise {level:.3g} s a step"
    )
    return Pattern("blip", says, level, worst, None, int(at[0]), int(at[-1]))
