"""PromQL's functions over a range, for all series and all moments at once; results are Prometheus' own.

A window has both its ends (Prometheus 2; since 3 the earlier end is outside). Means over many windows are added up in
another order than Prometheus does, so that the last of sixteen digits may differ; at a single moment they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trackwalker.telemetry.blocks import STALE
from trackwalker.telemetry.direct.samples import Samples, UnsupportedError
from trackwalker.telemetry.direct.unxor import ranges
from trackwalker.telemetry.xor import Floats, Ints

T = TypeVar("T")
Bools = NDArray[np.bool_]
_MOST_CELLS = 3_000_000  # values sorted at once
_SPARSE = 4
_CELLS_AT_ONCE = 1_000_000
_MOST_TIME = 1 << 62
_ROUNDING = 1e-9  # of a value: far more than adding up equal numbers can be wrong by
_STALE_BITS = np.float64(STALE).view(np.uint64)
_NEAR_THE_EDGE = 1.1  # mean distances between samples: how far Prometheus' rates reach to the end of a window


@dataclass(frozen=True)
class Windows:
    """For each series and each moment the samples [lo, hi) of a range that ends there."""

    samples: Samples
    lo: Ints
    hi: Ints
    time_lo: Ints  # the same by schedule, in the schedules' times
    time_hi: Ints
    ends: Ints
    range_ms: int

    @property
    def counts(self) -> Ints:
        """How many samples there are."""
        return self.hi - self.lo

    def last_times(self) -> Floats:
        """When the last sample of each window was taken, in milliseconds."""
        return _at(self.samples.times, self.time_hi - 1)[self.samples.schedule]


Function = Callable[[Windows], tuple[Floats, Bools]]


def windows(samples: Samples, ends: Ints, range_ms: int) -> Windows:
    """The samples of ranges that end at given moments."""
    return _of(samples, *_edges(samples, ends, range_ms), ends, range_ms)


def distinct(samples: Samples) -> tuple[Samples, Ints]:
    """Each stretch of values with its times once, and which of them each series is.

    Counters of one host that never moved, errors say, share their numbers and their times: one stands for all.
    """
    keys = samples.begins * len(samples.starts) + samples.schedule
    _, one, back = np.unique(keys, return_index=True, return_inverse=True)
    samples.known.setdefault("begins", samples.begins)
    return replace(samples, begins=samples.begins[one], schedule=samples.schedule[one]), back


def parts(samples: Samples, ends: Ints, range_ms: int) -> Iterator[Windows]:
    """The same, some series after the other: what is worked out for a great many of them needs no more memory."""
    samples.known.setdefault("begins", samples.begins)
    edges, many = _edges(samples, ends, range_ms), max(1, _CELLS_AT_ONCE // len(ends))
    for at in range(0, max(1, len(samples.begins)), many):
        some = slice(at, at + many)
        own = replace(samples, begins=samples.begins[some], schedule=samples.schedule[some])
        yield _of(own, *edges, ends, range_ms)


def _edges(samples: Samples, ends: Ints, range_ms: int) -> tuple[Ints, Ints]:
    """By schedule and moment, the first time inside and the first behind."""
    keys, (base, width) = _known(samples, "keys", _keys), _known(samples, "span", _span)
    rows = np.arange(len(samples.starts) - 1)[:, None] * width
    lo = np.searchsorted(keys, rows + np.clip(ends - range_ms - base, 0, width - 1)[None, :])
    hi = np.searchsorted(keys, rows + np.clip(ends - base, 0, width - 1)[None, :], side="right")
    return lo, hi


def _of(samples: Samples, lo: Ints, hi: Ints, ends: Ints, range_ms: int) -> Windows:
    shift = (samples.begins - samples.starts[samples.schedule])[:, None]
    return Windows(samples, lo[samples.schedule] + shift, hi[samples.schedule] + shift, lo, hi, ends, range_ms)


def _span(samples: Samples) -> tuple[int, int]:
    """A moment before all samples, and how much later all of them are over."""
    if not len(samples.times):
        return 0, 1
    base = int(samples.times.min()) - 1
    return base, int(samples.times.max()) - base + 2


def _keys(samples: Samples) -> Ints:
    """The times of all schedules as one rising row: looked for in one go, in every question about these samples."""
    base, width = _known(samples, "span", _span)
    count = len(samples.starts) - 1
    if count * width > _MOST_TIME:
        raise UnsupportedError("times that are too far apart")
    keys: Ints = np.repeat(np.arange(count) * width - base, np.diff(samples.starts))
    keys += samples.times
    return keys


def without_stale(samples: Samples) -> Samples:
    """Without the marks that say that a series ended."""
    if not _known(samples, "stale", lambda s: bool(is_stale(s.values).any())):
        return samples
    stale = is_stale(samples.values)
    counts, each = samples.counts, np.arange(len(samples.begins))
    places = ranges(samples.begins, counts)
    keep = ~stale[places]
    left = np.bincount(np.repeat(each, counts)[keep], minlength=len(each))
    times = samples.times[ranges(samples.starts[samples.schedule], counts)][keep]
    begins = np.cumsum(left) - left
    values = np.append(samples.values[places][keep], 0.0)
    return Samples(values, begins, times, np.append(begins, len(times)), each)


def _known(samples: Samples, what: str, find: Callable[[Samples], T]) -> T:
    """Something about all values, looked for once."""
    if what not in samples.known:
        samples.known[what] = find(samples)
    found: T = samples.known[what]
    return found


def is_stale(values: Floats) -> Bools:
    """Where a value is the mark of an end and no number."""
    found: Bools = values.view(np.uint64) == _STALE_BITS
    return found


def latest(w: Windows) -> tuple[Floats, Bools]:
    """The last value in each window."""
    there = w.counts > 0
    return _at(w.samples.values, w.hi - 1), there


def latest_time(w: Windows) -> tuple[Floats, Bools]:
    """The time of the last value in each window, in seconds."""
    there = w.counts > 0
    return w.last_times() / 1000.0, there


def _at(values: NDArray[np.generic], where: Ints) -> Floats:
    if not len(values):
        return np.zeros(where.shape)
    out: Floats = values[np.clip(where, 0, len(values) - 1)].astype(np.float64)
    return out


def _reduce(how: np.ufunc, values: Floats, lo: Ints, hi: Ints) -> Floats:
    """A reduction of each stretch; where it is empty the result means nothing."""
    shape, hi = lo.shape, np.maximum(lo, hi)
    # In the order of places: what lies between two stretches is gone through, and from an early one to one far behind
    # (of a series that never moved) that is nearly everything, again and again.
    order = np.argsort(lo[:, 0] if lo.ndim > 1 else lo, kind="stable")
    lo, hi = lo[order].ravel(), hi[order].ravel()
    counts = hi - lo
    if _SPARSE * int(counts.sum()) < len(values):  # what lies between the stretches would be gone through too
        values, hi = np.append(values[ranges(lo, counts)], 0.0), np.cumsum(counts)
        lo = hi - counts
    values = values[: int(hi.max(initial=0)) + 1]
    out: Floats = np.empty(shape, values.dtype)
    out[order] = how.reduceat(values, np.stack([lo, hi], axis=-1).ravel())[::2].reshape(shape)
    return out


def _count(w: Windows) -> tuple[Floats, Bools]:
    return w.counts.astype(np.float64), w.counts > 0


def _sum(w: Windows) -> tuple[Floats, Bools]:
    return _reduce(np.add, w.samples.values, w.lo, w.hi), w.counts > 0


def _max(w: Windows) -> tuple[Floats, Bools]:
    return _reduce(np.fmax, w.samples.values, w.lo, w.hi), w.counts > 0


def _min(w: Windows) -> tuple[Floats, Bools]:
    return _reduce(np.fmin, w.samples.values, w.lo, w.hi), w.counts > 0


def _avg(w: Windows) -> tuple[Floats, Bools]:
    if len(w.ends) == 1 and not _known(w.samples, "infinite", lambda s: bool(np.isinf(s.values).any())):
        return _running_mean(w), w.counts > 0
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _sum(w)[0] / np.maximum(w.counts, 1)
    # The mean of equal numbers is that number, to its last digit: a sensor that stands still is told by it.
    first = _at(w.samples.values, w.lo)
    near = np.flatnonzero((np.abs(mean - first) <= _ROUNDING * np.abs(first)).ravel())
    if len(near):
        lo, hi = w.lo.ravel()[near], w.hi.ravel()[near]
        low, high = (_reduce(how, w.samples.values, lo, hi) for how in (np.fmin, np.fmax))
        mean.ravel()[near[low == high]] = low[low == high]
    return mean, w.counts > 0


def _running_mean(w: Windows) -> Floats:
    """Sample after sample with what rounding lost (Kahan, Neumaier), to Prometheus' last digit: people compare it."""
    values, lo, counts = w.samples.values, w.lo[:, 0], w.counts[:, 0]
    order = np.argsort(-counts, kind="stable")
    lo, counts = lo[order], counts[order]
    mean, lost = np.zeros(len(lo)), np.zeros(len(lo))
    for k in range(int(counts.max(initial=0))):
        n = int(np.searchsorted(-counts, -k))
        before = mean[:n].copy()
        by = values[lo[:n] + k] / (k + 1.0) - before / (k + 1.0)
        after = before + by
        lost[:n] += np.where(np.abs(before) >= np.abs(by), (before - after) + by, (by - after) + before)
        mean[:n] = after
    out = np.empty((len(lo), 1))
    out[order, 0] = mean + lost
    return out


def _moves(values: Floats) -> Bools:
    """Where a value is not the one before it; two that are no numbers are alike."""
    before = np.concatenate([values[:1], values[:-1]])
    out: Bools = (values != before) & ~(np.isnan(values) & np.isnan(before))
    return out


def _between(what: str, flags: Callable[[Floats], Bools], w: Windows) -> Floats:
    """How many flags are set behind the first sample of each window."""
    total = _known(w.samples, what, lambda s: np.concatenate([[0], np.cumsum(flags(s.values))]).astype(np.int32))
    return np.maximum(_at(total, w.hi) - _at(total, w.lo + 1), 0.0)


def _changes(w: Windows) -> tuple[Floats, Bools]:
    return _between("moves", _moves, w), w.counts > 0


def _resets(w: Windows) -> tuple[Floats, Bools]:
    return _between("falls", _falls, w), w.counts > 0


def _falls(values: Floats) -> Bools:
    falls = np.zeros(len(values), bool)
    with np.errstate(invalid="ignore"):
        np.less(values[1:], values[:-1], out=falls[1:])
    return falls


def _lost(samples: Samples) -> Floats | None:
    """What a counter that began anew had counted up to where it fell; None where none did."""
    values = samples.values
    falls = _falls(values[:-1])
    begins = samples.known.get("begins", samples.begins)  # of all series, where these are but some
    falls[begins[begins < len(falls)]] = False
    return np.append(np.where(falls, np.roll(values[:-1], 1), 0.0), 0.0) if falls.any() else None


def _rate(w: Windows) -> tuple[Floats, Bools]:
    return _risen(w, w.range_ms / 1000.0)


def _increase(w: Windows) -> tuple[Floats, Bools]:
    return _risen(w, 1.0)


def _risen(w: Windows, per: float) -> tuple[Floats, Bools]:
    """What a counter rose by, extended to the whole window as Prometheus does."""
    values, there = w.samples.values, w.counts > 1
    rise = _at(values, w.hi - 1) - _at(values, w.lo)
    lost = _known(w.samples, "lost", _lost)
    if lost is not None:
        rise = rise + np.where(there, _reduce(np.add, lost, np.minimum(w.lo + 1, w.hi), w.hi), 0.0)
    some = (there & (rise != 0.0)).nonzero()  # nearly all counters of errors have not moved
    rise[some] *= _extended(w, some, rise[some], per)
    return rise, there


def _extended(w: Windows, some: tuple[Ints, Ints], rise: Floats, per: float) -> Floats:
    """How much longer than from its first sample to its last a window is, as far as Prometheus believes in it."""
    series, moment = some
    schedule = w.samples.schedule[series]
    begins = _at(w.samples.times, w.time_lo[schedule, moment])
    stops = _at(w.samples.times, w.time_hi[schedule, moment] - 1)
    first = _at(w.samples.values, w.lo[some])
    ends = w.ends[moment]
    sampled = (stops - begins) / 1000.0
    to_start = (begins - (ends - w.range_ms)) / 1000.0
    to_end = (ends - stops) / 1000.0
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        apart = sampled / (w.hi[some] - w.lo[some] - 1)
        to_zero = sampled * (first / rise)
        to_start = np.where((rise > 0) & (first >= 0) & (to_zero < to_start), to_zero, to_start)
        extended = sampled + np.where(to_start < _NEAR_THE_EDGE * apart, to_start, apart / 2)
        extended += np.where(to_end < _NEAR_THE_EDGE * apart, to_end, apart / 2)
        out: Floats = extended / sampled / per
        return out


def quantile(w: Windows, share: float) -> tuple[Floats, Bools]:
    """Between the two nearest of the sorted values, as Prometheus does."""
    nan = _known(w.samples, "nan", lambda s: bool(np.isnan(s.values).any()))
    if not 0 <= share <= 1 or nan:
        raise UnsupportedError("a quantile beyond all values, or of what is no number")
    counts, lo = w.counts.ravel(), w.lo.ravel()
    out = np.zeros(len(counts))
    most = int(counts.max(initial=1))
    for at in range(0, len(counts), max(1, _MOST_CELLS // most)):
        some = slice(at, at + max(1, _MOST_CELLS // most))
        inside = np.arange(most) < counts[some, None]
        table = np.full(inside.shape, np.inf)
        table[inside] = w.samples.values[ranges(lo[some], counts[some])]
        out[some] = between_ranks(table, counts[some], share)
    return out.reshape(w.lo.shape), w.counts > 0


def between_ranks(table: Floats, counts: Ints, share: float) -> Floats:
    """A quantile of each row's first so many values; behind them stand infinities."""
    rank = share * np.maximum(counts - 1, 0)
    low = np.floor(rank).astype(np.intp)
    high = np.minimum(low + 1, np.maximum(counts - 1, 0))
    table.partition(np.union1d(low, high), axis=1)
    rows, weight = np.arange(len(table)), rank - low
    with np.errstate(invalid="ignore"):
        out: Floats = table[rows, low] * (1 - weight) + table[rows, high] * weight
    return out


FUNCTIONS: dict[str, Function] = {
    "avg_over_time": _avg,
    "changes": _changes,
    "count_over_time": _count,
    "increase": _increase,
    "last_over_time": latest,
    "max_over_time": _max,
    "min_over_time": _min,
    "rate": _rate,
    "resets": _resets,
    "sum_over_time": _sum,
}
