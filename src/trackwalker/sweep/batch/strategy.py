"""The batch sweep: the size (or any other setting) with the highest steady throughput, in few jobs.

One setting is searched between too small and out of memory, or tried value by value; a second one may be fixed to each
of its values in turn. Then the best few are repeated while they are too close to call.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.sweep.batch.judge import MOST_CONTENDERS, MOST_RUNS, Point, contenders, runs_of
from trackwalker.sweep.batch.report import report
from trackwalker.sweep.model import Conclusion, Done, Result, Template, Trial

_MOST_VALUES = 12
_MOST_LOST = 3  # values that fail for another reason than memory: the setting is not the question any more
_ENV = "_env_"
_GROW = ("per_device_batch_size", "max_target_length")  # a value above one that was too large is too large, too


# Where to look next for the best size between too small and out of memory, from what was seen so far.
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


@dataclass(frozen=True)
class Parameter:
    """What is varied: searched in a space, or tried value by value."""

    name: str
    values: tuple[str, ...] = ()
    space: Space | None = None


def build(request: Mapping[str, Any]) -> BatchSweep:
    """The strategy of a request."""
    try:
        parameters = [_parameter(p) for p in request["params"]]
        base = Template.read(request)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise UsageError(f"this is no request of a batch sweep: {type(e).__name__}: {e}") from e
    if not 1 <= len(parameters) <= 2:
        raise UsageError("one or two settings can be varied: --param NAME, or --param NAME --param OTHER=a,b,c")
    if len({p.name for p in parameters}) < len(parameters):
        raise UsageError(f"{parameters[0].name} is varied twice; name two different settings")
    if len(parameters) == 2 and parameters[1].space is not None:
        raise UsageError(f"{parameters[1].name}: the second setting is fixed to values in turn: NAME=a,b,c")
    for p in parameters:
        if p.name in base.config or p.name.removeprefix(_ENV) in base.env:
            raise UsageError(f"{p.name} is varied and cannot be set as well")
    return BatchSweep(base, parameters, str(request.get("memory", "")))


def _parameter(said: Mapping[str, Any]) -> Parameter:
    name = str(said["name"])
    if values := tuple(str(v) for v in said.get("values", ())):
        if any(not v or set(v) & set(" #\t\n") for v in values):
            raise UsageError(f"{name}: a value may not be empty or hold a space or '#'")
        if len(set(values)) < len(values) or not 1 < len(values) <= _MOST_VALUES:
            raise UsageError(f"{name}: between two and {_MOST_VALUES} different values")
        return Parameter(name, values)
    known = {k: said[k] for k in ("start", "low", "high", "step", "growth", "most") if said.get(k) is not None}
    space = Space(**known)
    if space.low < 1 or space.step < 1 or (space.high is not None and space.high < space.low):
        raise UsageError(f"{name}={space.low}:{space.high}: sizes from 1 on, the smaller one first")
    if space.high is not None and space.high // space.step < 1:
        raise UsageError(f"{name}: no multiple of {space.step} up to {space.high}")
    return Parameter(name, space=space)


class BatchSweep:
    """See the top of this file; pure, as every strategy."""

    kind = "batch"

    def __init__(self, base: Template, parameters: Sequence[Parameter], memory: str = "") -> None:
        self._base, self._varied, self._memory = base, parameters[0], memory
        fixed = parameters[1] if len(parameters) > 1 else None
        self._lines: list[tuple[tuple[str, str], ...]] = [((fixed.name, v),) for v in fixed.values] if fixed else [()]

    def next_trials(self, done: Done) -> list[Trial]:
        """The next value of each line; then further runs of those that are too close to call, round by round."""
        wanted = [self._next(line, done) for line in self._lines]
        if any(wanted):
            return [self._trial(point, 1) for point in wanted if point]
        for run in range(2, MOST_RUNS + 1):
            again = [self._trial(p, run) for p in self._contenders(done, run - 1)]
            if missing := [t for t in again if t.key not in done]:
                return missing
            if not again:
                break
        return []

    def stop(self, done: Done) -> str:
        """Failures that have nothing to do with the size."""
        lost = [r for r in done.values() if r.status in ("config-error", "failed", "node-fault")]
        if len(lost) >= _MOST_LOST and len(lost) > sum(r.ok for r in done.values()):
            return f"{len(lost)} jobs failed for other reasons than their size ({lost[-1].why or lost[-1].status})"
        return ""

    def at_most(self) -> int:
        """Every value of every line, and every repetition."""
        each = self._varied.space.most if self._varied.space else len(self._varied.values)
        return each * len(self._lines) + MOST_CONTENDERS * (MOST_RUNS - 1)

    def conclude(self, done: Done) -> Conclusion:
        """The fastest value; the smaller one of those that are as fast."""
        stopped = self.stop(done)
        final = bool(stopped) or not self.next_trials(done)
        last = [p for p in self._contenders(done, MOST_RUNS) if len(runs_of(p, done, MOST_RUNS)) > 1]
        return report(self._points(done), last, done, self._varied.name, self._memory, stopped, final)

    def _contenders(self, done: Done, runs: int) -> list[Point]:
        return contenders(self._points(done), done, runs)

    def _points(self, done: Done) -> list[Point]:
        """Every value that was tried, smaller ones first."""
        return [p for line in self._lines for p in self._line(line, done)]

    def _line(self, line: tuple[tuple[str, str], ...], done: Done) -> list[Point]:
        varied = self._varied
        tried = {Point.read(key) for key in done}
        own = [p for p in tried if p.fixed == line]
        order = (lambda p: varied.values.index(p.value)) if varied.values else (lambda p: int(p.value))
        return sorted(own, key=order)

    def _next(self, line: tuple[tuple[str, str], ...], done: Done) -> Point | None:
        varied = self._varied
        first = {p.value: done[p.key(1)] for p in self._line(line, done)}
        if varied.space is None:
            value = next((v for v in varied.values if v not in first and not self._above(v, first)), None)
            return Point(varied.name, value, line) if value is not None else None
        scores = {int(v): r.score for v, r in first.items() if r.ok and r.score is not None}
        bounds = {int(v): r.phase == "init" for v, r in first.items() if is_bound(r)}
        lost = [int(v) for v, r in first.items() if not r.ok and not is_bound(r)]
        size = next_size(varied.space, scores, bounds, lost)
        return Point(varied.name, str(size), line) if size is not None else None

    def _above(self, value: str, first: Mapping[str, Result]) -> bool:
        """Whether a smaller value was too large already."""
        if self._varied.name not in _GROW:
            return False
        return any(float(value) > float(v) for v, r in first.items() if is_bound(r))

    def _trial(self, point: Point, run: int) -> Trial:
        words = {point.name: point.value, **dict(point.fixed)}
        config = {k: v for k, v in words.items() if not k.startswith(_ENV)}
        env = {k.removeprefix(_ENV): v for k, v in words.items() if k.startswith(_ENV)}
        what = f"{point.name}={point.value}"
        why = f"whether {what} runs and how fast" if run == 1 else f"{what} once more: too close to call"
        base = self._base
        return base.trial(point.key(run), why, config={**base.config, **config}, env={**base.env, **env})


def is_bound(result: Result) -> bool:
    """Whether a run says that this size is too large: no memory, or a hang that came back when it was repeated."""
    return result.status in ("oom", "hang")
