"""The batch sweep: the size (or any other setting) with the highest steady throughput, in few jobs.

One setting is searched between too small and out of memory, or tried value by value; a second one may be fixed to each
of its values in turn. Then the best few are repeated while they are too close to call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.sweep.batch_judge import MOST_CONTENDERS, MOST_RUNS, Point, contenders, runs_of
from trackwalker.sweep.batch_report import report
from trackwalker.sweep.batch_search import Space, next_size
from trackwalker.sweep.model import Conclusion, Done, Result, Trial
from trackwalker.sweep.usual import job_settings

_MOST_VALUES = 12
_MOST_LOST = 3  # values that fail for another reason than memory: the setting is not the question any more
_ENV = "_env_"
_GROW = ("per_device_batch_size", "max_target_length")  # a value above one that was too large is too large, too


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
        model, nodes = str(request["model"]), tuple(map(str, request.get("nodes", ())))
        config, env = job_settings(request)
        minutes, memory = float(request.get("minutes", 10.0)), str(request.get("memory", ""))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise UsageError(f"this is no request of a batch sweep: {type(e).__name__}: {e}") from e
    if not 1 <= len(parameters) <= 2:
        raise UsageError("one or two settings can be varied: --param NAME, or --param NAME --param OTHER=a,b,c")
    if len({p.name for p in parameters}) < len(parameters):
        raise UsageError(f"{parameters[0].name} is varied twice; name two different settings")
    if len(parameters) == 2 and parameters[1].space is not None:
        raise UsageError(f"{parameters[1].name}: the second setting is fixed to values in turn: NAME=a,b,c")
    for p in parameters:
        if p.name in config or p.name.removeprefix(_ENV) in env:
            raise UsageError(f"{p.name} is varied and cannot be set as well")
    return BatchSweep(model, nodes, config, env, parameters, minutes, memory)


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

    def __init__(
        self,
        model: str,
        nodes: tuple[str, ...],
        config: Mapping[str, str],
        env: Mapping[str, str],
        parameters: Sequence[Parameter],
        minutes: float = 10.0,
        memory: str = "",
    ) -> None:
        self._model, self._nodes, self._config, self._env = model, nodes, config, env
        self._varied, self._minutes, self._memory = parameters[0], minutes, memory
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
        return Trial(
            key=point.key(run),
            model=self._model,
            nodes=self._nodes,
            config={**self._config, **config},
            env={**self._env, **env},
            why=f"whether {what} runs and how fast" if run == 1 else f"{what} once more: too close to call",
            minutes=self._minutes,
        )


def is_bound(result: Result) -> bool:
    """Whether a run says that this size is too large: no memory, or a hang that came back when it was repeated."""
    return result.status in ("oom", "hang")
