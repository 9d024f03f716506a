"""Change points of a step-time series, judged by the series' own noise; and series that rise all along."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trackwalker.stats.medians import known_row_medians, median, quantile, row_medians

Floats = NDArray[np.float64]

_MOST_POINTS = 2000  # longer series are reduced to medians of equal blocks first
_SETTLED_AT = 80  # points of a block: two doublings beyond the twenty that most runs have a dozen of
_FEWEST_BLOCKS = 12  # differences of fewer are mostly shifts when a run has three of them
_LEAST_SIGMA = 1e-4
_PLAIN = 10.0  # times the noise from step to step: nobody takes that for noise
_PLAIN_EFFECT = 0.05
_SAME_LEVEL = 0.2  # of the distance between the slowest and the fastest stretch: still full speed
_BOUT = 0.5  # of that distance: plainly something else
_FLOOR_SHARE = 0.3  # of the points at least lie on a floor
_OF_THE_FLOOR, _LEAST_FLOOR = 6.0, 0.01  # standard deviations, and a part, by which its points differ at most
_BELOW = 0.02  # of the points at most lie below it
_AGAIN = 3  # stretches at one level: twice may be chance
_SMALLEST_EFFECT = 0.02  # a smaller shift may be the weather: only a measured cause that fits makes it more
_SURE = 3.0  # standard errors of the difference of two levels


@dataclass(frozen=True)
class Segment:
    """A stretch [start, end) of the series at one level (its median)."""

    start: int
    end: int
    level: float

    @property
    def size(self) -> int:
        """How many points it holds."""
        return self.end - self.start


def segments(
    values: Floats, min_size: int = 5, smallest: float = _SMALLEST_EFFECT, sure: float = _SURE
) -> list[Segment]:
    """Split positive values into stretches of constant level.

    Exact optimal partitioning of the logarithms with a penalty from the long-run variance, so that slow wandering of
    a noisy machine is not taken for a shift; isolated spikes are set aside first; neighbours that differ by less
    than `sure` times the noise of their levels, or than the `smallest` fraction, are joined again.
    """
    values = np.asarray(values, dtype=float)
    n = len(values)
    if n == 0:
        return []
    block = max(1, int(np.ceil(n / _MOST_POINTS)))
    reduced = _block_medians(values, block)
    logs = np.log(np.maximum(reduced, 1e-9))
    x = _without_spikes(logs)
    if len(x) < 2 * min_size:
        return [Segment(0, n, level_of(values))]
    if (bouts := _bouts_above_a_floor(x, min_size)) is not None:
        bounds = [min(c * block, n) for c in bouts[:-1]] + [n]
        return [Segment(a, b, level_of(values[a:b])) for a, b in pairwise(bounds)]
    noise = long_run_noise(_levelled(x, min_size))
    noise = replace(noise, sigma=max(noise.sigma, _rounding_sigma(logs)))
    cuts = _partition(x, min_size, penalty=4.0 * noise.sigma**2 * np.log(len(x)))
    cuts = _refine(x, _join(x, cuts, noise, smallest, sure), min_size)
    bounds = [min(c * block, n) for c in cuts[:-1]] + [n]
    return [Segment(a, b, level_of(values[a:b])) for a, b in pairwise(bounds)]


@dataclass(frozen=True)
class Noise:
    """How uncertain a level is: sigma / sqrt(points), but a level that wanders gains nothing beyond `memory` points."""

    sigma: float
    memory: float = np.inf

    def of_level(self, points: int) -> float:
        """Standard error of the level of that many points."""
        return float(self.sigma / np.sqrt(min(points, self.memory)))

    def at_least(self, part: Floats) -> Noise:
        """The same, or the noise of this part where it is the more erratic one: a starved run is slow and restless."""
        return replace(self, sigma=max(self.sigma, robust_sigma(np.diff(part)) / np.sqrt(2.0)))


def long_run_noise(x: Floats) -> Noise:
    """Noise of the level, wandering included: white noise gives its sigma, slow drift back and forth gives more.

    Judged from differences of neighbouring block means at several block sizes. A real shift touches one difference
    of many, so it does not raise the yardstick it is measured with. Noise that grows with the block size has a long
    memory (other load on a shared machine comes and goes): then averaging over more points than the largest block
    cannot be trusted to help, and only larger shifts count.
    """
    sigmas = {}
    for block in (1, 3, 5, *(10 * 2**k for k in range(10))):  # thousands of short steps tell what hundreds of them do
        blocks = len(x) // block
        if blocks < _FEWEST_BLOCKS * (1 if block < _SETTLED_AT // 2 else 2):  # a dozen is a poor measure of the longest
            break
        means = x[: blocks * block].reshape(blocks, block).mean(axis=1)
        sigmas[block] = robust_sigma(np.diff(means)) / np.sqrt(2.0) * np.sqrt(block)
    worst, longest = max(sigmas.values(), default=0.0), max(sigmas, default=1)
    wanders = len(sigmas) > 1 and worst > 1.3 * sigmas[1]
    if longest >= _SETTLED_AT:  # noise that stopped growing on the way has shown how long its memory is
        wanders = wanders and sigmas[longest] > 1.2 * max(v for b, v in sigmas.items() if b < longest)
    return Noise(max(worst, _LEAST_SIGMA), float(longest) if wanders else np.inf)


def _levelled(x: Floats, min_size: int) -> Floats:
    """The series without its plain phases: stretches far apart, as the noise from step to step judges it.

    A run that becomes slow and fast again twice has four shifts; in wide blocks they would be most of the differences,
    and the phases would be taken for the noise they are to be measured with. Many small shifts are wandering, and stay.
    """
    cuts = _plain_cuts(x, min_size)
    if not _back_and_forth(x, cuts):
        cuts = _plain_cuts(x, 2 * min_size)
        if len(cuts) - 2 > len(x) / (4 * min_size):
            return x
    levels: Floats = np.concatenate([np.full(b - a, median(x[a:b])) for a, b in pairwise(cuts)])
    return x - levels


def _plain_cuts(x: Floats, min_size: int) -> list[int]:
    """Where the level shifts so far that nobody takes it for noise."""
    sigma = max(robust_sigma(np.diff(x)) / np.sqrt(2.0), _LEAST_SIGMA)
    cuts = _partition(x, min_size, penalty=(_PLAIN * sigma) ** 2)

    def shift(a: int, b: int, c: int) -> float:
        return abs(level_of(x[b:c]) - level_of(x[a:b]))

    return _strong_cuts(cuts, shift, max(_PLAIN * sigma, _PLAIN_EFFECT))


def _back_and_forth(x: Floats, cuts: list[int]) -> bool:
    """Whether it comes back to one level again and again and lies above it between: bouts of something.

    Bouts may differ in strength; a level that wanders has values everywhere, and does not find one level again.
    """
    levels = np.array([median(x[a:b]) for a, b in pairwise(cuts)])
    above = levels - levels.min()
    most = max(float(np.ptp(levels)), 1e-12)
    low, high = above <= _SAME_LEVEL * most, above >= _BOUT * most
    again = above <= min(_SAME_LEVEL * most, 0.25 * _PLAIN_EFFECT)
    fewest = len(levels) // 2
    return (bool(np.all(low | high)) and int(low.sum()) >= fewest) or int(again.sum()) >= max(fewest, _AGAIN)


def _bouts_above_a_floor(x: Floats, min_size: int) -> list[int] | None:
    """Cuts between a level that the series comes back to exactly, and erratic stretches that all lie above it.

    What wanders by itself goes both ways and finds no level again: such a floor is full speed, however high and
    restless the bouts between are, and they are no measure of how the floor strays.
    """
    low = x[x <= quantile(x, _FLOOR_SHARE)]
    floor = median(low)
    near = max(_OF_THE_FLOOR * 1.4826 * median(np.abs(low - floor)), _LEAST_FLOOR)
    on = running_median((x <= floor + near).astype(float), 2 * (min_size // 2) + 1) > 0.5
    edges = [0, *(np.flatnonzero(np.diff(on)) + 1).tolist(), len(x)]
    runs = [(a, b, bool(on[a])) for a, b in pairwise(edges)]
    lasting = [b - a for a, b, is_on in runs if is_on and b - a >= 2 * min_size]
    bouts = [level_of(x[a:b]) - floor for a, b, is_on in runs if not is_on and b - a >= min_size]
    short = any(b - a < min_size for a, b, _ in runs[1:-1])
    if len(lasting) < 2 or not bouts or short or sum(lasting) < _FLOOR_SHARE * len(x):
        return None
    if min(bouts) < max(2.0 * near, _PLAIN_EFFECT) or float(np.mean(x < floor - near)) > _BELOW:
        return None
    return edges


def smallest_visible(values: Floats, least: float) -> float:
    """The smallest lasting change of level, as a fraction, that stands clear of how the level wanders by itself."""
    blocks = len(values) // 10
    if blocks < 3:
        return least
    medians = row_medians(values[: blocks * 10].reshape(blocks, 10))
    return max(least, 4.0 * robust_sigma(medians) / median(values))


def running_median(x: Floats, width: int) -> Floats:
    """Centred median; near the ends the window shrinks."""
    n = len(x)
    half = min(width, n) // 2
    if n == 0 or half == 0:
        return x.copy()
    padded = np.concatenate([np.full(half, np.nan), x, np.full(half, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    if n <= 4 * half or np.isnan(x).any():
        return known_row_medians(windows)
    # Only at the ends is anything missing; the plain median is ten times as fast as the one that allows for it.
    parts = (
        known_row_medians(windows[:half]),
        row_medians(windows[half:-half]),
        known_row_medians(windows[-half:]),
    )
    return np.asarray(np.concatenate(parts), dtype=float)


def robust_sigma(x: Floats) -> float:
    """Standard deviation from the median absolute deviation."""
    return 1.4826 * median(np.abs(x - median(x))) if len(x) else 0.0


def level_of(x: Floats) -> float:
    """The median; of values on a coarse grid (times told in whole seconds) the mean, as their median jumps."""
    if is_coarse(x):
        return float(np.minimum(np.maximum(x, quantile(x, 0.05)), quantile(x, 0.95)).mean())
    return median(x)


def is_coarse(x: Floats) -> bool:
    """Whether the values lie on a coarse grid: few that differ, each of them often."""
    if len(x) < _FEWEST_BLOCKS:
        return False
    most, low, high = max(3, len(x) // 6), float(x.min()), float(x.max())
    if (high - low) * 1e4 + 2 <= most:  # no more than so many can differ: a long run need not be sorted to know it
        return True
    ordered = np.sort(np.round(x, 4))
    return 1 + int(np.count_nonzero(ordered[1:] > ordered[:-1])) <= most


def _rounding_sigma(x: Floats) -> float:
    """Noise of values printed with few digits: most neighbours are equal, which a median takes for no noise at all."""
    steps = np.diff(x)
    equal = len(steps) > 0 and median(np.abs(steps)) == 0.0
    return float(np.sqrt(np.mean(steps**2) / 2.0)) if equal else 0.0


def _block_medians(values: Floats, block: int) -> Floats:
    if block == 1:
        return values
    n = len(values) // block * block
    medians = row_medians(values[:n].reshape(-1, block))
    rest = values[n:]
    return np.append(medians, median(rest)) if len(rest) else medians


def _without_spikes(x: Floats) -> Floats:
    """Single slow steps (a save, a garbage collection) replaced by their surroundings."""
    smooth = running_median(x, 7)
    residual = x - smooth
    sigma = robust_sigma(residual)
    limit = max(5.0 * sigma, 0.02)
    steps = np.abs(np.diff(x))
    if sigma == 0.0 and steps.any():  # printed with few digits: one unit of the last digit is no spike
        limit = max(limit, 1.5 * float(steps[steps > 0].min()))
    return np.where(np.abs(residual) > limit, smooth, x)


def _partition(x: Floats, min_size: int, penalty: float) -> list[int]:
    """Cut positions (with 0 and n) that minimise squared error plus a penalty per cut."""
    n = len(x)
    s1 = np.concatenate([[0.0], np.cumsum(x)])
    s2 = np.concatenate([[0.0], np.cumsum(x * x)])
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    previous = np.zeros(n + 1, dtype=int)
    sizes = np.arange(n, -1, -1.0)  # from n - t on: how many points lie between each place and t
    squares, totals = np.empty(n + 1), np.empty(n + 1)
    for t in range(min_size, n + 1):
        m = t - min_size + 1  # slices and no new arrays: this loop is the whole cost of a long series
        square, total = squares[:m], totals[:m]
        np.subtract(s1[t], s1[:m], out=square)
        np.multiply(square, square, out=square)
        np.divide(square, sizes[n - t : n - t + m], out=square)
        np.subtract(s2[t], s2[:m], out=total)
        np.subtract(total, square, out=total)
        np.add(best[:m], total, out=total)
        np.add(total, penalty, out=total)
        at = int(total.argmin())
        best[t], previous[t] = total[at], at
    cuts = [n]
    while cuts[-1] > 0:
        cuts.append(int(previous[cuts[-1]]))
    return cuts[::-1]


def _refine(x: Floats, cuts: list[int], min_size: int) -> list[int]:
    """Move each cut to where both sides, each with its own spread, fit best.

    The partition assumes equal noise on both sides; a phase that is slow *and* erratic would begin too late with it.
    """
    cuts = list(cuts)
    for i in range(1, len(cuts) - 1):
        a, c = cuts[i - 1], cuts[i + 1]
        part = x[a:c] - x[a:c].mean()
        n = np.arange(1, len(part) + 1)
        s1, s2 = np.cumsum(part), np.cumsum(part * part)
        floor = max(1e-8, (0.1 * robust_sigma(np.diff(part))) ** 2)
        at = n[min_size - 1 : len(part) - min_size]
        left = s2[at - 1] / at - (s1[at - 1] / at) ** 2
        rest = len(part) - at
        right = (s2[-1] - s2[at - 1]) / rest - ((s1[-1] - s1[at - 1]) / rest) ** 2
        cost = at * np.log(np.maximum(left, floor)) + rest * np.log(np.maximum(right, floor))
        if len(at):
            cuts[i] = a + int(at[int(np.argmin(cost))])
    return cuts


def _join(x: Floats, cuts: list[int], noise: Noise, smallest: float, sure: float) -> list[int]:
    """Remove the weakest cut until every remaining one is both significant and large enough to matter."""

    def strength(a: int, b: int, c: int) -> float:
        shift = abs(level_of(x[b:c]) - level_of(x[a:b]))
        error = np.hypot(noise.at_least(x[a:b]).of_level(b - a), noise.at_least(x[b:c]).of_level(c - b))
        return 0.0 if shift < smallest else float(shift / error)

    return _strong_cuts(cuts, strength, sure)


def _strong_cuts(cuts: list[int], strength: Callable[[int, int, int], float], enough: float) -> list[int]:
    """The cuts without the weakest, one by one, until each is strong enough.

    Without a cut only its two neighbours are judged anew: rounded values begin with a cut at every few steps.
    """
    cuts = list(cuts)
    strengths = [strength(*around) for around in zip(cuts[:-2], cuts[1:-1], cuts[2:], strict=True)]
    while strengths:
        weakest = int(np.argmin(strengths))
        if strengths[weakest] >= enough:
            break
        del cuts[weakest + 1], strengths[weakest]
        for i in range(max(weakest - 1, 0), min(weakest + 1, len(strengths))):
            strengths[i] = strength(*cuts[i : i + 3])
    return cuts


_BLOCKS, _FEWEST_STAIRS = 12, 5  # four steps between them: one that is out of line is a quarter
_RISING = 0.75  # of the steps from block to block: what grows all along grows nearly everywhere
_SURE_OF_A_TREND = 4.0  # standard errors
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


def steady_rise(times: Floats, values: Floats, stairs: int = _BLOCKS) -> Trend | None:
    """The trend of a series that rises all along; None for one that jumps, fills up and stays, or only wanders.

    Medians of blocks, so that saves and single samples do not count; the median of their steps, so that a copy that
    is kept after the first save is one step of many. What rises by `stairs`, as with each save, has no more blocks.
    """
    blocks = min(max(stairs, _FEWEST_STAIRS), _BLOCKS)
    known = np.isfinite(values)
    times, values = times[known], values[known]
    if len(values) < 2 * blocks:
        return None
    parts = np.array_split(np.arange(len(values)), blocks)
    levels = np.array([median(values[p]) for p in parts])
    centres = np.array([float(np.mean(times[p])) for p in parts])
    pace = np.diff(levels) / np.diff(centres)
    slope = median(pace)
    error = 1.253 * robust_sigma(pace) / np.sqrt(len(pace))  # of a median, against that of a mean
    lasting = float(np.mean(pace > 0.1 * slope)) >= _RISING and median(pace[-3:]) >= _STILL * slope
    if slope <= 0 or slope < _SURE_OF_A_TREND * error or not lasting:
        return None
    level = float(levels[-1])
    late = np.concatenate(parts[-blocks // 4 :])
    above = values[late] - (level + slope * (times[late] - centres[-1]))
    return Trend(slope, float(error), level, float(level - levels[0]), max(0.0, float(above.max())))
