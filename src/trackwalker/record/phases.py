"""Where a run was slow: stretches of one speed, and which of them are below the full speed of the run. One rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from trackwalker.record.masks import UNEVEN_SHARE, WARM_UP_STEPS, Masks
from trackwalker.record.timeline import Floats, Timeline
from trackwalker.stats.medians import median, quantile, row_medians
from trackwalker.stats.segments import Segment, level_of, robust_sigma, segments

_AS_MANY_TOKENS = 0.985  # a second
_LARGER = 1.04  # batch
_LEAST_SLIDE = 0.05  # of throughput, lost little by little
_RESTLESS = 4  # slow phases side by side
_STRETCHES = 12  # of full speed at least, whose levels tell how it wanders
_NORMAL_RANGE = 3.26  # standard deviations between the least and the most of twelve values
_SETTLING = 20  # steps
_SETTLING_SHARE = 0.08  # of the run
_RESTLESS_STEPS = 40  # of each
LEAST_LOST_S = 5.0  # a slow phase that cost less than this, or less than one step, is a dip, not an incident
_LASTING = 0.03  # of a step: a smaller slide is the weather
_BLOCK, _MEAN_BLOCKS, _FEWEST_BLOCKS, _MOST_BLOCKS = 10, 3, 12, 40  # steps, whose mean counts; blocks
_LONG, _MANY = 1.5, 10  # times the usual step; so many are no single ones
_OFTENER, _OFTEN_COSTS = 2.0, 0.08  # times as often, and what that costs of the speed


@dataclass(frozen=True)
class Phase:
    """A stretch of steps at one speed, as the change-point search found it."""

    first_step: int
    last_step: int
    start: float
    end: float
    seconds: float  # median step time
    slow: bool
    by_mean: bool = False  # its seconds are the mean: what makes a phase of this run slow is that long steps are many

    @property
    def steps(self) -> int:
        """How many step numbers it spans."""
        return self.last_step - self.first_step + 1


@dataclass(frozen=True)
class Eye:
    """How small a lasting change of speed still counts, as a fraction, and how sure it has to be."""

    shift: float  # between neighbouring stretches
    slow: float  # against full speed
    sure: float  # standard errors
    share: float = 1.0  # of the run's time, whose loss counts though it is only seconds of a short run
    wander: float = 4.0  # times the wandering of full speed itself


PLAIN = Eye(0.02, 0.03, 3.0)
# A percent is much money on a large run, and may be the weather on any: believed only where a measured cause fits.
KEEN = Eye(0.008, 0.01, 5.0, UNEVEN_SHARE)


def find_phases(timeline: Timeline | None, masks: Masks, live: bool, eye: Eye = PLAIN) -> tuple[Phase, ...]:
    """Stretches of constant speed; saves and the first steps are masked."""
    if timeline is None or len(timeline) < 4 * WARM_UP_STEPS:
        return ()
    index = np.flatnonzero(~masks.any)
    values = timeline.seconds[index]
    if len(values) < 2 * WARM_UP_STEPS:
        return ()
    cuts = segments(values, smallest=eye.shift, sure=eye.sure)
    # Full speed is the fastest stretch that lasted: a short lucky one does not make the rest slow.
    least = min(0.15 * len(values), 50)
    lasting = [[c] for c in cuts if c.size >= least] + _again(cuts, least, eye.slow)
    lasting = lasting + _fragments(cuts, least) if lasting else [[c] for c in cuts]
    baseline, folded = min(((_level(values, g), g) for g in lasting), key=lambda level: level[0])
    fast = np.concatenate([values[c.start : c.end] for c in cuts if c.level <= (1.0 + eye.slow) * baseline])
    below = [
        c
        for c in cuts
        if c not in folded and c.level > baseline * (1.0 + max(eye.slow, eye.wander * _wander(fast, c.size) / baseline))
    ]
    # One short dip is a dip; many of them together are what somebody is paged for.
    cost = sum(c.size * (c.level - baseline) for c in below)
    least_lost = min(LEAST_LOST_S, eye.share * float(values.sum()))
    many = cost >= max(UNEVEN_SHARE * float(values.sum()), least_lost)
    phases = []
    for cut in cuts:
        first, last = int(index[cut.start]), int(index[cut.end - 1])
        start, end = float(timeline.ends[first] - timeline.seconds[first]), float(timeline.ends[last])
        lasted = end - start if np.isfinite(end - start) else float(values[cut.start : cut.end].sum())
        lost = lasted * (1.0 - baseline / cut.level) if cut.level > 0 else 0.0
        slow = cut in below and (many or lost >= max(least_lost, baseline))
        phases.append(Phase(int(timeline.steps[first]), int(timeline.steps[last]), start, end, cut.level, slow))
    phases = _without_warm_up(_restless_as_one(phases, timeline.steps[index], values))
    phases = _with_larger_batches(phases, timeline)
    if not any(p.slow for p in phases):
        phases = _slide(timeline, index) or _often_long(timeline, index) or phases
    return tuple(_with_slow_tail(phases, timeline)) if live else tuple(phases)


def _level(values: Floats, cuts: list[Segment]) -> float:
    return level_of(np.concatenate([values[c.start : c.end] for c in cuts]))


def _again(cuts: list[Segment], least: float, alike: float) -> list[list[Segment]]:
    """Stretches that are each half as long, and that the run came back to: a speed met again was no luck."""
    half = sorted((c for c in cuts if 0.5 * least <= c.size < least), key=lambda c: c.level)
    groups = [[o for o in half if c.level <= o.level <= (1.0 + alike) * c.level] for c in half]
    return [g for g in groups if len(g) > 1 and sum(c.size for c in g) >= least]


def _fragments(cuts: list[Segment], least: float) -> list[list[Segment]]:
    """Short stretches side by side that together last: hasty steps are cut to pieces, and still are one speed."""
    runs = [list(g) for short, g in groupby(cuts, key=lambda c: c.size < least) if short]
    return [run for run in runs if len(run) > 1 and sum(c.size for c in run) >= least]


def _restless_as_one(phases: list[Phase], steps: NDArray[np.int64], values: Floats) -> list[Phase]:
    """Short slow phases side by side, up and down in turn, are one restless stretch: a test of each finds chance."""
    out: list[Phase] = []
    for slow, group in groupby(phases, key=lambda p: p.slow):
        run = list(group)
        turns = np.sign(np.diff([p.seconds for p in run]))
        short = all(p.last_step - p.first_step < _RESTLESS_STEPS for p in run)
        if slow and len(run) >= _RESTLESS and short and float(np.mean(turns[1:] != turns[:-1])) >= 0.6:
            mine = (steps >= run[0].first_step) & (steps <= run[-1].last_step)
            run = [replace(run[0], last_step=run[-1].last_step, end=run[-1].end, seconds=level_of(values[mine]))]
        out += run
    return out


def _without_warm_up(phases: list[Phase]) -> list[Phase]:
    """The first steps may settle for longer than most runs need: a short slow beginning of a long run is no trouble."""
    first, steps = phases[0], phases[-1].last_step - phases[0].first_step + 1
    length = first.last_step - first.first_step + 1
    alone = first.slow and not any(p.slow for p in phases[1:])
    if alone and length <= min(_SETTLING, _SETTLING_SHARE * steps):
        return [replace(first, slow=False), *phases[1:]]
    return phases


def _with_larger_batches(phases: list[Phase], timeline: Timeline) -> list[Phase]:
    """Longer steps that do as many tokens a second as the short ones are larger batches, and not slow."""
    inside = [timeline.between(p.first_step, p.last_step) for p in phases]
    rates = [median(timeline.tgs[i]) for i in inside]
    batches = [median(timeline.tgs[i] * timeline.seconds[i]) for i in inside]
    rate, batch = max(
        ((r, b) for r, b, p in zip(rates, batches, phases, strict=True) if not p.slow), default=(0.0, 0.0)
    )
    return [
        replace(p, slow=False) if p.slow and b > _LARGER * batch and r >= _AS_MANY_TOKENS * rate else p
        for p, r, b in zip(phases, rates, batches, strict=True)
    ]


def _slide(timeline: Timeline, index: NDArray[np.intp]) -> list[Phase] | None:
    """A run that becomes slower little by little has no step in its speed: its beginning is fast, its end slow."""
    ends = sliding(timeline.seconds[index])
    if ends is None or ends[0] / ends[1] - 1.0 > -_LEAST_SLIDE:
        return None
    parts = np.array_split(index, 4)
    out = []
    for part, slow in ((parts[0], False), (np.concatenate(parts[1:3]), True), (parts[3], True)):
        first, last = int(part[0]), int(part[-1])
        start, end = float(timeline.ends[first] - timeline.seconds[first]), float(timeline.ends[last])
        level = median(timeline.seconds[part])
        out.append(Phase(int(timeline.steps[first]), int(timeline.steps[last]), start, end, level, slow))
    return out


def _often_long(timeline: Timeline, index: NDArray[np.intp]) -> list[Phase] | None:
    """Where long steps become many and the usual one stays as it was: a lost packet costs one step, and that a lot.

    Medians do not see it, so stretches are of the mean of equal blocks of steps; a few long steps are single ones.
    """
    values = timeline.seconds[index]
    each = max(_BLOCK, -(-len(values) // _MOST_BLOCKS))
    blocks = len(values) // each
    if blocks < _FEWEST_BLOCKS:
        return None
    means = values[: blocks * each].reshape(blocks, each).mean(axis=1)
    cuts = [
        Segment(c.start * each, c.end * each if c.end < blocks else len(values), 0.0)
        for c in segments(means, min_size=_MEAN_BLOCKS)
    ]
    long = values > _LONG * level_of(values)
    share = [float(long[c.start : c.end].mean()) for c in cuts]
    level = [float(values[c.start : c.end].mean()) for c in cuts]
    base = min(range(len(cuts)), key=level.__getitem__)
    slow = [
        level[i] >= (1.0 + _OFTEN_COSTS) * level[base]
        and long[c.start : c.end].sum() >= _MANY
        and share[i] >= _OFTENER * max(share[base], 1.0 / (cuts[base].size + 1))
        and c.size * (level[i] - level[base]) >= LEAST_LOST_S
        for i, c in enumerate(cuts)
    ]
    if not any(slow):
        return None
    out = []
    for cut, seconds, is_slow in zip(cuts, level, slow, strict=True):
        first, last = int(index[cut.start]), int(index[cut.end - 1])
        start, end = float(timeline.ends[first] - timeline.seconds[first]), float(timeline.ends[last])
        out.append(Phase(int(timeline.steps[first]), int(timeline.steps[last]), start, end, seconds, is_slow, True))
    return out


def _with_slow_tail(phases: list[Phase], timeline: Timeline) -> list[Phase]:
    """A run that has just become very slow has too few slow steps for statistics; two in a row are enough to say so."""
    usual = 2.0 * quantile(timeline.seconds[WARM_UP_STEPS:-4], 0.99)
    tail = 0
    while tail < 4 and timeline.seconds[-1 - tail] > usual:
        tail += 1
    first = len(timeline) - tail
    start = float(timeline.ends[first - 1]) if tail else 0.0
    if tail < 2 or phases[-1].slow or float(timeline.ends[-1]) - start < 2.0 * LEAST_LOST_S:
        return phases
    level, last = median(timeline.seconds[first:]), int(timeline.steps[-1])
    before = replace(phases[-1], last_step=int(timeline.steps[first - 1]), end=start)
    return [*phases[:-1], before, Phase(int(timeline.steps[first]), last, start, float(timeline.ends[-1]), level, True)]


def _wander(fast: Floats, steps: int) -> float:
    """How far the level of full speed strays by itself over so many steps: the yardstick for calling a phase slow.

    Ten steps of milliseconds are a moment of any scheduler; a phase of thousands is measured by stretches of hundreds.
    """
    each = max(10, min(steps, len(fast) // _STRETCHES))
    blocks = len(fast) // each
    if blocks < 3:
        return 0.0
    levels = row_medians(fast[: blocks * each].reshape(blocks, each))
    sigma = robust_sigma(levels)
    # A speed that settled during the run has two levels, and a spread that says more than it ever strayed.
    return min(sigma, float(np.ptp(levels)) / _NORMAL_RANGE) if blocks >= _STRETCHES else sigma


def sliding(seconds: Floats) -> tuple[float, float] | None:
    """First and last level of a run that slows down little by little: block medians rise, no one jump explains it."""
    blocks = 12
    n = len(seconds) // blocks
    if n < 3:
        return None
    medians = row_medians(seconds[: n * blocks].reshape(blocks, n))
    rises, total = np.diff(medians), float(medians[-1] - medians[0])
    noise = robust_sigma(seconds) / np.sqrt(n)
    enough = total > max(_LASTING * median(seconds), 6.0 * min(noise, abs(total)))
    one_jump = float(np.max(np.abs(rises))) > 0.4 * abs(total)
    if not enough or one_jump or float(np.mean(np.sign(rises) == np.sign(total))) < 0.85:
        return None
    return float(medians[0]), float(medians[-1])
