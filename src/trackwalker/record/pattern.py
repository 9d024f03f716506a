"""The shape of a run's speed: constant, one drop, phases, a slow slide, periodic or single slow steps (spec 2.12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trackwalker.record.masks import Masks
from trackwalker.record.phases import Phase, sliding
from trackwalker.record.timeline import Floats, Ints, Timeline
from trackwalker.stats.medians import median

_FEWEST = 20  # steps: less says nothing about a trend
_FEWEST_LEFT = 15  # when the mask leaves less, nearly every step is a save: then they are the run
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


def pattern_of(timeline: Timeline | None, masks: Masks, phases: Sequence[Phase]) -> Pattern:
    """Name the shape; masked steps (saves, compilation, profiler, the first ones) say nothing about it.

    Whether there is a slow phase is the record's word; single slow steps and their period are told here.
    """
    if timeline is None:
        return Pattern("too-short", "0 timed steps are too few for a trend")
    known = np.isfinite(timeline.seconds) & (timeline.seconds > 0)
    if known.sum() < _FEWEST:
        return Pattern("too-short", f"{int(known.sum())} timed steps are too few for a trend")
    keep = known & ~masks.any
    if keep.sum() < _FEWEST_LEFT:
        keep = known
    steps, seconds = timeline.steps[keep], timeline.seconds[keep]
    if any(p.slow for p in phases):
        return _slower(steps, seconds, phases)
    return _spikes(steps, seconds, median(seconds))


def _slower(steps: Ints, seconds: Floats, phases: Sequence[Phase]) -> Pattern:
    slow, full = [p for p in phases if p.slow], [p for p in phases if not p.slow]
    slid = sliding(seconds)
    if slid is not None and all(b.seconds > a.seconds for a, b in pairwise(phases)):
        change = slid[0] / slid[1] - 1.0
        says = f"slows down little by little, {slid[0]:.3g} to {slid[1]:.3g} s a step ({100 * change:+.0f} %)"
        return Pattern("gradual", says, *slid, round(change, 4), int(steps[0]), int(steps[-1]))
    lasting = [p for p in full if p.steps >= min(0.15 * len(steps), 50)] or full or slow
    fast, worst = min(p.seconds for p in lasting), max(p.seconds for p in slow)
    change = fast / worst - 1.0
    where = (slow[0].first_step, slow[-1].last_step)
    numbers = f"{fast:.3g} to {worst:.3g} s a step ({100 * change:+.0f} % throughput)"
    back_and_forth = any(a.slow and not b.slow for a, b in pairwise(phases))
    if not back_and_forth and len({round(p.seconds / fast, 1) for p in slow}) <= 1:
        says = f"drops once at step {where[0]} and stays: {numbers}"
        return Pattern("constant-drop", says, fast, worst, round(change, 4), *where)
    many = f"{len(slow)} slow phases" if len(slow) > 1 else "a slow phase"
    says = f"{many} between steps {where[0]} and {where[1]}: {numbers}"
    return Pattern("phased", says, fast, worst, round(change, 4), *where)


def _spikes(steps: Ints, seconds: Floats, level: float) -> Pattern:
    at = steps[seconds > _SPIKE * level]
    if not len(at):
        return Pattern("constant", f"steady at {level:.3g} s a step", level)
    worst = float(seconds[seconds > _SPIKE * level].max())
    gaps = np.diff(at)
    if len(at) >= 3:
        period = int(median(gaps))
        if period > 1 and float(np.mean(np.abs(gaps / period - np.round(gaps / period)) * period <= 1.0)) > 0.8:
            says = f"a slow step about every {period} steps (up to {worst:.3g} s against {level:.3g} s)"
            return Pattern("periodic", says, level, worst, None, int(at[0]), int(at[-1]), period)
    says = (
        f"{len(at)} single slow step{'s' if len(at) > 1 else ''} (up to {worst:.3g} s), otherwise {level:.3g} s a step"
    )
    return Pattern("blip", says, level, worst, None, int(at[0]), int(at[-1]))
