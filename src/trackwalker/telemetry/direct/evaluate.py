"""PromQL over arrays: a question's tree evaluated for all series and all moments at once."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from trackwalker.telemetry.direct import promql as p
from trackwalker.telemetry.direct.samples import (
    Blocks,
    Metric,
    Samples,
    UnsupportedError,
    Vector,
    grouped,
    vectors_as_one,
)
from trackwalker.telemetry.direct.windows import (
    FUNCTIONS,
    Bools,
    Function,
    Windows,
    between_ranks,
    distinct,
    is_stale,
    latest,
    latest_time,
    parts,
    quantile,
    windows,
    without_stale,
)
from trackwalker.telemetry.xor import Floats, Ints

# Of a selector: a metric, its chosen rows, the windows of distinct series, and which of these each row is.
_Found = tuple[str, Metric, Ints, Iterator[Windows], Ints]

LOOKBACK_MS = 300_000
_LARGE_GROUP = 64
_MOST_HELD = 32_000_000  # bytes of values over time: the GPUs of a thousand hosts in 400 columns
_MOST_METRICS = 8  # of one selector
_NAME = "__name__"
_KEEP_NAME = frozenset(("last_over_time",))
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip


class Evaluation:
    """One question at given moments (milliseconds)."""

    def __init__(self, blocks: Blocks, times: Ints) -> None:
        self._blocks, self._times = blocks, times

    def value(self, node: p.Node) -> Vector | float:
        """What a tree gives."""
        if isinstance(node, p.Number):
            return node.value
        if isinstance(node, p.Selector | p.Call):
            return self._once(node)
        if isinstance(node, p.Aggregation):
            return self._aggregate(node)
        if isinstance(node, p.Binary):
            return self._binary(node)
        raise UnsupportedError(f"{type(node).__name__} here")

    def vector(self, node: p.Node) -> Vector:
        """What a tree gives, which has to be series."""
        found = self.value(node)
        if not isinstance(found, Vector):
            raise UnsupportedError("a number where series are due")
        return found

    def _once(self, node: p.Selector | p.Call) -> Vector:
        """Series that stand in many questions that come one after the other: a map's highest, lowest and mean."""
        key, at_once = (node, self._times.tobytes()), len(self._times) == 1
        held = self._blocks.recent if at_once else self._blocks.last
        found: Vector | None = held.get(key)
        if found is None:
            found = self._call(node) if isinstance(node, p.Call) else self._instant(node, latest)
            if at_once or found.values.nbytes <= _MOST_HELD:
                held.keep(key, found)
        return found

    # -- selecting

    def _chosen(self, matchers: tuple[p.Matcher, ...]) -> list[tuple[str, Metric, Ints]]:
        names = [m for m in matchers if m.label == _NAME]
        metrics = sorted(self._blocks.metrics)
        if len(names) == 1 and names[0].sign == "=":
            metrics = [names[0].value] if names[0].value in self._blocks.metrics else []
        else:
            metrics = [name for name in metrics if all(_fits(m, name) for m in names)]
        if not names or len(metrics) > _MOST_METRICS:
            raise UnsupportedError("a selector of everything")
        return [(name, metric := self._blocks.metric(name), self._rows(metric, matchers)) for name in metrics]

    def _rows(self, metric: Metric, matchers: tuple[p.Matcher, ...]) -> Ints:
        keep = np.ones(len(metric.labels), bool)
        for matcher in matchers:
            if matcher.label == _NAME:
                continue
            if matcher.label not in metric.names:
                keep &= _fits(matcher, "")
                continue
            values, which = np.unique(metric.labels[:, metric.names.index(matcher.label)], return_inverse=True)
            fits = np.array([_fits(matcher, self._blocks.texts[v]) for v in values.tolist()], bool)
            keep &= fits[which]
        return np.flatnonzero(keep)

    def samples(self, node: p.Selector, first: int, last: int) -> Iterator[tuple[dict[str, str], Floats, Floats]]:
        """The stored samples of every matching series that has any: labels, times in seconds, values."""
        for name, metric, rows in self._chosen(node.matchers):
            found = without_stale(metric.between(first, last, rows))
            w = windows(found, np.array([last]), last - first)
            for i in np.flatnonzero(w.counts[:, 0]).tolist():
                told = zip(metric.names, metric.labels[rows[i]].tolist(), strict=True)
                labels = {n: self._blocks.texts[code] for n, code in told if code}
                times = found.times[w.time_lo[found.schedule[i], 0] : w.time_hi[found.schedule[i], 0]]
                yield {_NAME: name, **labels}, times / 1000.0, found.values[w.lo[i, 0] : w.hi[i, 0]]

    def _windows(self, node: p.Selector, range_ms: int, stale: bool) -> list[_Found]:
        ends = self._times if node.at_ms is None else np.array([node.at_ms])
        ends = ends - node.offset_ms
        out = []
        for name, metric, rows in self._chosen(node.matchers):
            samples = metric.between(int(ends.min()) - range_ms, int(ends.max()), rows)
            samples, which = distinct(samples if stale else without_stale(samples))
            out.append((name, metric, rows, parts(samples, ends, range_ms), which))
        return out

    def _vector(
        self,
        found: list[_Found],
        how: Function,
        named: bool,
    ) -> Vector:
        vectors = []
        for name, metric, rows, pieces, which in found:
            told = [how(w) for w in pieces]
            values, there = (np.concatenate(both) for both in zip(*told, strict=True))
            any_there = np.flatnonzero(np.take(there.any(axis=1), which))
            labels = metric.labels[rows[any_there]]
            code = np.full((len(labels), 1), self._blocks.code(name))
            steps = (len(any_there), len(self._times))
            values, there = (
                np.broadcast_to(values[which[any_there]], steps),
                np.broadcast_to(there[which[any_there]], steps),
            )
            vectors.append(Vector((_NAME, *metric.names), np.hstack([code, labels]), values, there))
        whole = vectors_as_one(vectors, len(self._times))
        if named:
            return whole
        whole = whole.without(_NAME)
        if len(vectors) > 1 and len(grouped(whole.labels)[0]) < len(whole.labels):
            raise UnsupportedError("series that only their names tell apart")
        return whole

    def _instant(self, node: p.Selector, how: Function) -> Vector:
        if node.range_ms is not None:
            raise UnsupportedError("samples instead of values")
        found = self._windows(node, LOOKBACK_MS, stale=True)

        def alive(w: Windows) -> tuple[Floats, Bools]:
            last, there = latest(w)
            return how(w)[0], there & ~is_stale(last)

        return self._vector(found, alive, named=how is latest)

    # -- functions

    def _call(self, node: p.Call) -> Vector:
        name, args = node.name, node.args
        if name == "quantile_over_time" and len(args) == 2 and isinstance(args[0], p.Number):
            share = args[0].value
            return self._over_range(args[1], lambda w: quantile(w, share), named=False)
        if name in FUNCTIONS and len(args) == 1:
            return self._over_range(args[0], FUNCTIONS[name], named=name in _KEEP_NAME)
        if name == "timestamp" and len(args) == 1 and isinstance(args[0], p.Selector):
            return self._instant(args[0], latest_time)
        if name in ("clamp_min", "clamp_max") and len(args) == 2 and isinstance(args[1], p.Number):
            inner = self.vector(args[0]).without(_NAME)
            how = np.maximum if name == "clamp_min" else np.minimum
            return replace(inner, values=how(inner.values, args[1].value))
        if name == "label_replace" and len(args) == 5:
            return self._labelled(args[0], tuple(a.value if isinstance(a, p.Text) else "$" for a in args[1:]))
        raise UnsupportedError(f"the function {name}")

    def _over_range(self, node: p.Node, how: Function, named: bool) -> Vector:
        if isinstance(node, p.Subquery):
            return self._over_subquery(node, how)
        if not isinstance(node, p.Selector) or node.range_ms is None:
            raise UnsupportedError("a range of something else than series")
        return self._vector(self._windows(node, node.range_ms, stale=False), how, named)

    def _over_subquery(self, node: p.Subquery, how: Function) -> Vector:
        ends = self._times if node.at_ms is None else np.array([node.at_ms])
        ends = ends - node.offset_ms
        first = -(-(int(ends.min()) - node.range_ms) // node.step_ms) * node.step_ms
        looks = np.arange(first, int(ends.max()) + 1, node.step_ms)
        if not len(looks):
            raise UnsupportedError("a subquery without a look")
        inner = Evaluation(self._blocks, looks).vector(node.inner)
        starts = np.concatenate([[0], np.cumsum(inner.there.sum(axis=1))])
        times = np.broadcast_to(looks, inner.there.shape)[inner.there]
        samples = Samples(
            np.append(inner.values[inner.there], 0.0), starts[:-1], times, starts, np.arange(len(inner.labels))
        )
        values, there = how(windows(samples, ends, node.range_ms))
        shape = (len(values), len(self._times))
        whole = Vector(inner.names, inner.labels, np.broadcast_to(values, shape), np.broadcast_to(there, shape))
        return whole.without(_NAME)

    def _labelled(self, node: p.Node, told: tuple[str, ...]) -> Vector:
        label, to, *pattern = told
        if pattern != ["", ""] or "$" in label + to:
            raise UnsupportedError("label_replace by a pattern")
        inner = self.vector(node)
        names = (*(n for n in inner.names if n != label), label)
        mark = np.full((len(inner.labels), 1), self._blocks.code(to))
        return replace(inner, names=names, labels=np.hstack([inner.without(label).labels, mark]))

    # -- aggregations

    def _aggregate(self, node: p.Aggregation) -> Vector:
        inner = self.vector(node.inner)
        gone = (*node.labels, _NAME)
        names = tuple(n for n in inner.names if n not in gone) if node.without else node.labels
        if not len(inner.labels):
            return Vector(names, np.zeros((0, len(names)), np.int64), inner.values[:0], inner.there[:0])
        labels, which = grouped(inner.only(names))
        if node.name == "count_values":
            return self._counted_values(node, inner, names)
        order = np.argsort(which, kind="stable")
        starts = np.searchsorted(which[order], np.arange(len(labels)))
        values, there = inner.values[order], inner.there[order]
        count = np.add.reduceat(there.astype(np.int64), starts, axis=0)
        if node.name == "quantile":
            if not isinstance(node.argument, p.Number):
                raise UnsupportedError("a quantile of no share")
            out = _group_quantile(values, there, starts, count, node.argument.value)
        else:
            out = _together(node.name, values, there, starts, count)
        return Vector(names, labels, out, count > 0)

    def _counted_values(self, node: p.Aggregation, inner: Vector, names: tuple[str, ...]) -> Vector:
        if not isinstance(node.argument, p.Text) or names or inner.values.shape[1] != 1:
            raise UnsupportedError("count_values by labels or over time")
        found, counts = np.unique(inner.values[inner.there], return_counts=True)
        if not np.all(found == np.round(found)) or np.abs(found).max(initial=0) > 1e15:
            raise UnsupportedError("count_values of fractions")
        codes = np.array([[self._blocks.code(str(int(v)))] for v in found.tolist()], np.int64).reshape(-1, 1)
        return Vector((node.argument.value,), codes, counts[:, None].astype(float), np.ones((len(found), 1), bool))

    # -- operators

    def _binary(self, node: p.Binary) -> Vector | float:
        left, right = self.value(node.left), self.value(node.right)
        how = _ARITHMETIC.get(node.sign)
        with np.errstate(all="ignore"):
            if isinstance(left, Vector) and isinstance(right, Vector):
                return _set(node, left, right) if how is None else _matched(node, left, right, how)
            if how is not None and isinstance(left, Vector) and not isinstance(right, Vector):
                return _compared(node, left, how(left.values, right), left.values)
            if how is not None and isinstance(right, Vector) and not isinstance(left, Vector):
                return _compared(node, right, how(left, right.values), right.values)
        raise UnsupportedError("an operator between numbers")


def _compared(node: p.Binary, vector: Vector, result: Any, kept: Floats) -> Vector:
    """An operator's result: a comparison keeps those for which it holds, unless it is asked for as a number."""
    if node.sign in p.COMPARISONS and not node.as_bool:
        return replace(vector, values=kept, there=vector.there & result)
    return replace(vector, values=np.asarray(result, np.float64)).without(_NAME)


def _matched(node: p.Binary, left: Vector, right: Vector, how: Callable[[Any, Any], Any]) -> Vector:
    """Pairs of series with the same labels, one to one."""
    names, ours, theirs = _keys(node, left, right)
    if max(np.bincount(ours).max(initial=0), np.bincount(theirs).max(initial=0)) > 1:
        raise UnsupportedError("several series on one side of an operator")
    _, i, j = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    there = left.there[i] & right.there[j]
    pair = Vector(left.names, left.labels[i], left.values[i], there)
    pair = Vector(names, pair.only(names), pair.values, there) if node.on is not None else pair.without(*node.ignoring)
    return _compared(node, pair, how(left.values[i], right.values[j]), left.values[i])


def _keys(node: p.Binary, left: Vector, right: Vector) -> tuple[tuple[str, ...], Ints, Ints]:
    """The labels that have to agree, and a number for each series by them."""
    unlike = {_NAME, *node.ignoring}
    names = tuple(sorted({*left.names, *right.names} - unlike)) if node.on is None else node.on
    _, which = grouped(np.concatenate([left.only(names), right.only(names)]))
    return names, which[: len(left.labels)], which[len(left.labels) :]


def _set(node: p.Binary, left: Vector, right: Vector) -> Vector:
    _, ours, theirs = _keys(node, left, right)
    if node.sign == "or":
        rest = right.there & ~_present(ours, left.there, theirs)
        some = np.flatnonzero(rest.any(axis=1))
        other = Vector(right.names, right.labels[some], right.values[some], rest[some])
        return vectors_as_one([left, other], left.values.shape[1])
    found = _present(theirs, right.there, ours)
    return replace(left, there=left.there & (found if node.sign == "and" else ~found))


def _present(keys: Ints, there: Bools, asked: Ints) -> Bools:
    """Whether any series with a key is there, for the keys that are asked for."""
    table = np.zeros((int(max(keys.max(initial=0), asked.max(initial=0))) + 1, there.shape[1]), bool)
    np.logical_or.at(table, keys, there)
    return table[asked]


def _together(name: str, values: Floats, there: Bools, starts: Ints, count: Ints) -> Floats:
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


def _group_quantile(values: Floats, there: Bools, starts: Ints, count: Ints, share: float) -> Floats:
    """A quantile over the series of each group."""
    if np.isnan(values[there]).any() or not 0 <= share <= 1:
        raise UnsupportedError("a quantile beyond all values, or of what is no number")
    out = np.zeros(count.shape)
    for at, (begin, end) in enumerate(zip(starts.tolist(), [*starts.tolist()[1:], len(values)], strict=True)):
        table = np.where(there[begin:end], values[begin:end], np.inf).T.copy()
        out[at] = between_ranks(table, count[at], share)
    return out


def _fits(matcher: p.Matcher, text: str) -> bool:
    if matcher.sign in ("=", "!="):
        return (text == matcher.value) == (matcher.sign == "=")
    try:
        found = re.fullmatch(matcher.value, text) is not None
    except re.error:
        raise UnsupportedError(f"the pattern {matcher.value!r}") from None
    return found == (matcher.sign == "=~")
