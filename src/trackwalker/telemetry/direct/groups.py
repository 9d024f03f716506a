"""PromQL's aggregations: the series of each group as one, at all moments; in the order in which Prometheus adds up."""

from __future__ import annotations

import numpy as np

from trackwalker.telemetry.direct.samples import UnsupportedError
from trackwalker.telemetry.direct.windows import Bools, between_ranks
from trackwalker.telemetry.xor import Floats, Ints

_LARGE_GROUP = 64


def together(name: str, values: Floats, there: Bools, starts: Ints, count: Ints) -> Floats:
    """Rows of values that begin at `starts`, each group's as one; `there` says where a series has a value."""
    with np.errstate(all="ignore"):
        if name == "sum":
            return _sum(np.where(there, values, 0.0), starts)
        if name == "avg":
            return _mean(values, there, starts)
        if name in ("min", "max"):
            how = np.fmin if name == "min" else np.fmax
            out: Floats = how.reduceat(np.where(there, values, np.nan), starts, axis=0)
            return out
    return count.astype(np.float64) if name == "count" else np.ones(count.shape)


def _sum(values: Floats, starts: Ints) -> Floats:
    """One series after the other, as Prometheus does it: of a few rounded numbers the last digit is often seen."""
    sizes = np.diff(np.append(starts, len(values)))
    if sizes.max() > _LARGE_GROUP:
        pieces = np.split(values, starts[1:])
        return np.array([piece.cumsum(axis=0)[-1] for piece in pieces])
    total: Floats = values[starts]
    for k in range(1, int(sizes.max())):
        some = np.flatnonzero(sizes > k)
        total[some] += values[starts[some] + k]
    return total


def _mean(values: Floats, there: Bools, starts: Ints) -> Floats:
    """One series after the other, as Prometheus does it."""
    sizes = np.diff(np.append(starts, len(values)))
    if values.shape[1] == 1 and sizes.max() > _LARGE_GROUP:
        pieces = zip(np.split(values[:, 0], starts[1:]), np.split(there[:, 0], starts[1:]), strict=True)
        return np.array([[_mean_of(piece[inside].tolist())] for piece, inside in pieces])
    mean, seen = np.zeros((len(starts), values.shape[1])), np.zeros((len(starts), values.shape[1]))
    for k in range(int(sizes.max())):
        some = np.flatnonzero(sizes > k)
        rows = starts[some] + k
        count = seen[some] + 1
        step = values[rows] / count - mean[some] / count
        mean[some] = np.where(there[rows], np.where(count == 1, values[rows], mean[some] + step), mean[some])
        seen[some] += there[rows]
    return mean


def _mean_of(values: list[float]) -> float:
    mean = 0.0
    for count, value in enumerate(values, 1):
        mean = value if count == 1 else mean + (value / count - mean / count)
    return mean


def group_quantile(values: Floats, there: Bools, starts: Ints, count: Ints, share: float) -> Floats:
    """A quantile over the series of each group."""
    if np.isnan(values[there]).any() or not 0 <= share <= 1:
        raise UnsupportedError("a quantile beyond all values, or of what is no number")
    out = np.zeros(count.shape)
    for at, (begin, end) in enumerate(zip(starts.tolist(), [*starts.tolist()[1:], len(values)], strict=True)):
        table = np.where(there[begin:end], values[begin:end], np.inf).T.copy()
        out[at] = between_ranks(table, count[at], share)
    return out
