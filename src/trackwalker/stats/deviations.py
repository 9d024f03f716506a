"""Which of many series changed between two sets of bins, against their own past and their peers' changes.

Difference in differences: a series' own change, less the median change of its peers. The error comes from the
reference alone (noise of the incident would hide the incident), at several block lengths, as noise on real machines
is autocorrelated; it is never less than half of what the peers have, and the spread of the peers' changes and the
rounding of the sensor are added. All series are compared at once; nothing here loops over them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

FEWEST_PEERS = 4  # hosts: the median of three moves with any one of them
LEAST_SCORE = 4.0  # standard errors; below, false discoveries would decide
_FALSE_DISCOVERIES = 0.01
_OF_LEVEL = 1.0 / 300.0  # a third of a per cent of the level: no sensor is better calibrated over an hour
_COUNTS = 2.0  # of a counter: one event more or less is chance
_BLOCKS = (1, 2, 4, 8)
_FEWEST_BLOCKS = 6
_MOST_CLIPPED, _CLIPPED = 0.2, 0.03  # of the bins, at each end: at least one where that is no more than a fifth
_MOST_FREEDOM = 60.0
_SPARSE = 0.5  # of the bins of the reference hold an event
_DENSE, _DENSE_BINS = 0.8, 5  # of the bins of a window that has at least so many hold an event
_SEEN, _UNSEEN = 0.6, 0.1  # of the bins
_MAD = 1.4826  # from a median absolute deviation to a standard deviation


@dataclass(frozen=True)
class Changes:
    """For each series: mean before and after, the change beyond the peers', its error, and how sure (0: not tested)."""

    before: Floats
    after: Floats
    change: Floats
    error: Floats
    score: Floats

    def __len__(self) -> int:
        return len(self.score)


def changes(
    values: Floats,
    window: Bools,
    reference: Bools,
    peers: Ints,
    hosts: Ints,
    *,
    counter_s: float = 0.0,
    quantum: float = 0.0,
    relative: bool = False,
    silent: int = 0,
    yardstick: Bools | None = None,
) -> Changes:
    """Compare `values[series, bin]` in the window's bins with the reference's.

    `peers` numbers the peer group and `hosts` the host of each series; `counter_s` is a bin's length where values
    are rates of counters; `relative` measures changes as a share of the series' own level; `silent` counts series
    that were never shipped because they stayed at zero; `yardstick` says which series the peers' change is taken from,
    however few they are, instead of all.
    """
    past, now = _Bins.of(values[:, reference]), _Bins.of(values[:, window])
    level = np.abs(np.nan_to_num(past.mean))
    tested = past.known & (now.count >= 1)
    scale = np.where(tested & (level > 0), level, 1.0) if relative else np.ones(len(values))
    own = np.where(tested, (now.mean - past.mean) / scale, np.nan)
    noise, freedom = _noise(past)
    noise = noise / scale
    fleet, spread, usual = _peer_changes(own, noise, peers, hosts, silent, yardstick)
    noise = np.maximum(noise, 0.5 * usual)
    n_past, n_now = np.maximum(past.count, 1), np.maximum(now.count, 1)
    floor = _OF_LEVEL * level / scale + quantum / 2.0 / scale
    if counter_s:
        floor = floor + _COUNTS / (n_now * counter_s) / scale
    error = np.sqrt(noise**2 * (1.0 / n_past + 1.0 / n_now) + spread**2 + floor**2)
    change = np.where(tested, own - fleet, 0.0)
    score = _as_normal(change / np.where(error > 0, error, np.inf), freedom)
    if counter_s:
        sparse = tested & (past.active < _SPARSE * past.count)
        score = _by_activity(score, sparse, past, now, peers, silent)
    return Changes(
        past.mean, now.mean, np.where(tested, change * scale, 0.0), error * scale, np.where(tested, score, 0)
    )


def weather(values: Floats, window: Bools, reference: Bools, hosts: Ints) -> Floats:
    """For each series, the highest that any other host's reached in the reference over as long as the window lasts.

    Bursts that come to this and that host all the time accuse nobody whom they happen to hit in a bad hour.
    """
    past = np.nan_to_num(values[:, reference])
    length = min(int(window.sum()), past.shape[1])
    sums = np.concatenate([np.zeros((len(past), 1)), np.cumsum(past, axis=1)], axis=1)
    highest = ((sums[:, length:] - sums[:, :-length]) / max(length, 1)).max(axis=1) if length else np.zeros(len(past))
    return np.array([highest[hosts != host].max(initial=0.0) for host in hosts])


def vanished(values: Floats, window: Bools, reference: Bools, present: Bools, for_good: bool = False) -> Floats:
    """How sure it is that series which were there before are not there in the window, though their host is.

    `present[series, bin]` says whether the host reported anything at all; `for_good` looks at what comes after the last
    sample of each instead: whatever ends a run may happen anywhere in its last minutes.
    """
    seen = ~np.isnan(values)
    here = present & window[None, :]
    if for_good:
        here &= np.arange(values.shape[1])[None, :] > values.shape[1] - 1 - seen[:, ::-1].argmax(axis=1)[:, None]
    before = (seen & reference[None, :]).sum(axis=1) >= 0.9 * np.maximum((present & reference[None, :]).sum(axis=1), 1)
    bins = here.sum(axis=1)
    gone = before & (bins >= (2 if for_good else 3)) & ((seen & here).sum(axis=1) <= _UNSEEN * bins)
    return np.where(gone, np.sqrt(bins) + LEAST_SCORE, 0.0)


def frozen(values: Floats, window: Bools, reference: Bools) -> Floats:
    """How sure it is that a gauge that moved from bin to bin stands still in the window."""
    past, now = values[:, reference], values[:, window]
    if past.shape[1] < 3 or now.shape[1] < 3:
        return np.zeros(len(values))
    with np.errstate(invalid="ignore"):
        moved = np.mean(np.diff(past, axis=1) != 0, axis=1)
        still = ~np.isnan(now).any(axis=1) & (np.ptp(np.nan_to_num(now), axis=1) == 0)
    # The chance of so many equal neighbours, were it still the same sensor; nearly always moving means 0.98 at most.
    equal = 1.0 - np.minimum(moved, 0.98)
    chance = np.sqrt(-2.0 * np.log(np.maximum(equal, 1e-9)) * (now.shape[1] - 1))
    return np.where(still & (moved > 0.9), chance, 0.0)


def discoveries(scores: Floats, tests: int) -> Bools:
    """Which scores survive when `tests` comparisons were made (Benjamini and Hochberg)."""
    size = np.abs(scores)
    p = np.minimum(1.0, math.sqrt(2.0 / math.pi) * np.exp(-0.5 * size**2) / np.maximum(size, 1e-9))  # an upper bound
    order = np.argsort(p)
    limit = _FALSE_DISCOVERIES * np.arange(1, len(p) + 1) / max(tests, len(p), 1)
    passed = np.flatnonzero(p[order] <= limit)
    out = np.zeros(len(p), dtype=bool)
    if len(passed):
        out[order[: passed[-1] + 1]] = True
    return out & (size >= LEAST_SCORE)


@dataclass(frozen=True)
class _Bins:
    """Some bins of every series: extremes clipped, holes filled with the series' mean."""

    values: Floats
    count: Floats  # bins that hold a value
    mean: Floats
    active: Floats  # bins above zero
    known: Bools  # enough of them hold a value

    @classmethod
    def of(cls, values: Floats) -> _Bins:
        seen = ~np.isnan(values)
        count = seen.sum(axis=1).astype(float)
        if values.shape[1] == 0:
            return cls(values, count, np.full(len(values), np.nan), count, count > 0)
        # A series that began late has as much of a past as it is old; one full of holes has none.
        age = values.shape[1] - seen.argmax(axis=1)
        enough = np.minimum(_SEEN * values.shape[1], np.maximum(_SEEN * age, _FEWEST_BLOCKS))
        ordered = np.sort(values, axis=1)  # NaN goes last
        cut = np.floor(np.minimum(_MOST_CLIPPED * count, np.maximum(_CLIPPED * count, 1.0))).astype(int)
        rows = np.arange(len(values))
        low = ordered[rows, np.minimum(cut, values.shape[1] - 1)]
        high = ordered[rows, np.maximum(count.astype(int) - 1 - cut, 0)]
        clipped = np.clip(values, low[:, None], high[:, None])
        total = np.nansum(clipped, axis=1)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        filled = np.where(np.isnan(clipped), mean[:, None], clipped)
        known = (count >= enough) & (count >= 2)
        return cls(filled, count, mean, (values > 0).sum(axis=1).astype(float), known)


def _noise(past: _Bins) -> tuple[Floats, Floats]:
    """Standard deviation of a bin as far as means are concerned, slow wandering included, and degrees of freedom."""
    n = past.values.shape[1]
    worst, freedom = np.zeros(len(past.values)), np.full(len(past.values), max(3.0, n - 1.0))
    for block in _BLOCKS:
        blocks = n // block
        if blocks < _FEWEST_BLOCKS and block > 1:
            break
        if blocks < 2:
            break
        means = past.values[:, n - blocks * block :].reshape(len(past.values), blocks, block).mean(axis=2)
        # Spread of the block means, not of their differences: a reference that drifts is a poor reference.
        sigma = means.std(axis=1, ddof=1) * math.sqrt(block)
        better = sigma > worst
        worst = np.where(better, sigma, worst)
        # The worst of several lengths is an overestimate: fewer blocks cost less certainty than their number says.
        freedom = np.where(better, max(3.0, n / math.sqrt(block) - 1.0), freedom)
    # Bins without a value were filled with the mean, which varies less than any value would have.
    held = np.maximum(past.count - 1.0, 1.0)
    return worst * np.sqrt((n - 1.0) / held).clip(1.0), np.minimum(
        np.minimum(freedom, np.maximum(3.0, held)), _MOST_FREEDOM
    )


def _peer_changes(
    own: Floats, noise: Floats, peers: Ints, hosts: Ints, silent: int, yardstick: Bools | None
) -> tuple[Floats, Floats, Floats]:
    """For each series: median change, spread of changes and usual noise of its peer group; zeros where it has none."""
    fleet, spread, usual = np.zeros(len(own)), np.zeros(len(own)), np.zeros(len(own))
    for group in np.unique(peers):
        mine = (peers == group) & ~np.isnan(own)
        theirs = mine if yardstick is None else mine & yardstick
        fewest = FEWEST_PEERS if yardstick is None else 1
        if len(np.unique(hosts[theirs])) + silent < fewest:
            continue
        quiet = np.zeros(silent)
        moved = np.concatenate([own[theirs], quiet])
        middle = float(np.median(moved))
        fleet[mine] = middle
        spread[mine] = _MAD * float(np.median(np.abs(moved - middle)))
        usual[mine] = float(np.median(np.concatenate([noise[theirs], quiet])))
    return fleet, spread, usual


def _as_normal(t: Floats, freedom: Floats) -> Floats:
    """A t of few degrees of freedom as the score of a normal distribution that is as rare: it saturates."""
    result: Floats = np.sign(t) * np.sqrt(freedom * np.log1p(t**2 / freedom))
    return result


def _by_activity(score: Floats, sparse: Bools, past: _Bins, now: _Bins, peers: Ints, silent: int) -> Floats:
    """Scores of sparse counters: by the share of bins in which they counted anything, here, before and at the peers."""
    out = score.copy()
    busy = now.active / np.maximum(now.count, 1)
    for group in np.unique(peers[sparse]):
        mine = peers == group
        there = mine.sum() + silent > 3
        others = float(np.median(np.concatenate([busy[mine], np.zeros(silent)]))) if there else 0.0
        for i in np.flatnonzero(mine & sparse):
            share = max(float(past.active[i] / max(past.count[i], 1)), others)
            if busy[i] <= share or score[i] <= 0:
                out[i] = min(0.0, float(score[i]))
                continue
            n = float(now.count[i])
            n_past = max(float(past.count[i]), n if there else 0.0)  # peers are a reference as long as the window
            out[i] = _rarer(busy[i] * n, n, share * n_past, n_past)
            if n >= _DENSE_BINS and busy[i] >= _DENSE:
                out[i] = max(out[i], float(score[i]))  # no longer rare: how much it counts tells more than how often
    return out


def _rarer(k: float, n: float, k_past: float, n_past: float) -> float:
    """Score of k or more active bins of n, where k_past of n_past were (hypergeometric tail, its first term)."""

    def choose(a: float, b: float) -> float:
        return math.lgamma(a + 1.0) - math.lgamma(b + 1.0) - math.lgamma(max(a - b, 0.0) + 1.0)

    log_p = choose(n, k) + choose(n_past, k_past) - choose(n + n_past, k + k_past)
    p = math.exp(min(log_p, -1e-9))
    return -NormalDist().inv_cdf(p) if p > 1e-300 else 37.0
