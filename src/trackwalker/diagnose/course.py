"""The course of a run beyond its speed: single slow steps, saves, the loss, compilations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.timeline import Floats, Timeline
from trackwalker.stats.segments import robust_sigma, running_median

WARM_UP_STEPS = 5
UNEVEN_SHARE = 0.03  # of the run's time, lost in single slow steps or short bouts: then it is no jitter
_SPIKE = 1.3  # times the level around it
_SMALL_SPIKE = 1.1  # where they come so often that they cost the run something
_SPIKE_LOST_S = 5.0
_LONG_SAVE_S = 300.0
_LONG_SAVE_STEPS = 10.0
_PLAINLY = 2.5  # times as long: no jitter of a shared store
_IN_A_ROW = 3
_GROWN = 1.8  # a save against the earlier ones
_LEAST_EVAL_INTERVAL = 10  # more often, and hardly a step would be left to look at
_LEAST_PERIOD = 20  # steps between saves that nobody tells of
_MOST_PAIRED = 30  # long steps among which a rhythm is looked for
_ON_TIME = 0.85  # of the places of a rhythm
_ALL_ALONG = 1.2  # periods before the first and after the last of them
_UNLIKE = 3.0  # times as long: then these are not the same thing again and again
_DUMP_STEPS = 2  # writing the trace slows the step that ends it and the next


@dataclass(frozen=True)
class Spike:
    """One slow step among normal ones."""

    step: int
    seconds: float
    level: float
    start: float
    end: float


@dataclass(frozen=True)
class Save:
    """How much longer the step after a save took."""

    step: int
    extra_s: float


@dataclass(frozen=True)
class Loss:
    """Where the loss went wrong: not a number, or up and never back."""

    step: int
    says: str


def checkpoint_period(case: Case) -> int | None:
    """How often the run saves; None when it does not."""
    if (case.log.setting("enable_checkpointing") or "").lower() not in ("true", "1", "yes"):
        return None
    return case.log.number("checkpoint_period")


def save_steps(case: Case) -> set[int]:
    """Steps after which a checkpoint was (or should have been) written."""
    timeline, period = case.timeline, checkpoint_period(case)
    steps = set(case.log.saves)
    if timeline is not None and period:
        steps |= {int(s) for s in timeline.steps if s % period == 0}
    return steps or untold_saves(case)


def untold_saves(case: Case) -> set[int]:
    """Saves of a trainer that says nothing of them: long steps at equal distances all along, all about as long."""
    timeline = case.timeline
    if timeline is None or len(timeline) < 4 * WARM_UP_STEPS:
        return set()
    if case.log.setting("enable_checkpointing") or case.log.setting("eval_interval"):
        return set()  # a trainer that tells its settings tells these
    values, steps = timeline.seconds[WARM_UP_STEPS:], timeline.steps[WARM_UP_STEPS:]
    extra = values - running_median(values, 21)
    long = steps[(extra > (_SPIKE - 1.0) * (values - extra)) & (extra >= _SPIKE_LOST_S)]
    grid = _grid(long)
    costs = extra[np.isin(steps, grid)]
    if not grid or float(costs.max()) > _UNLIKE * float(costs.min()):
        return set()
    # What begins in the middle of a run, or ends there, is no habit of the trainer.
    period = _ALL_ALONG * float(np.max(np.diff(grid)))
    all_along = grid[0] - int(timeline.steps[0]) <= period and int(timeline.steps[-1]) - grid[-1] <= period
    return {int(s) - 1 for s in grid} if all_along else set()


def _grid(steps: NDArray[np.int64]) -> list[int]:
    """The steps at equal distances among these: most of them, hardly a place left out."""
    best: list[int] = []
    for first, second in combinations(steps.tolist()[:_MOST_PAIRED], 2):
        period = second - first
        if period < _LEAST_PERIOD:
            continue
        mine = [s for s in steps.tolist() if (s - first + 1) % period <= 2]  # one early or late is still the same
        due = (mine[-1] - mine[0]) / period + 1.0
        if len(mine) >= max(_IN_A_ROW, _ON_TIME * due) and len(mine) > max(len(best), 0.5 * len(steps)):
            best = mine
    return best


def profiled_steps(case: Case) -> set[int]:
    """Steps the profiler was set to record, and those it writes its dump in."""
    if (case.log.setting("profiler") or "").strip("'\"").lower() in ("", "none"):
        return set()
    timeline = case.timeline
    first = (int(timeline.steps[0]) if timeline is not None and len(timeline) else 0) + (
        case.log.number("skip_first_n_steps_for_profiler") or 0
    )
    length = (case.log.number("profiler_steps") or 1) + _DUMP_STEPS
    period = case.log.number("profile_periodically_period") or 0
    last = int(case.timeline.steps[-1]) if period > 0 and case.timeline is not None and len(case.timeline) else first
    return {step for begin in range(first, last + 1, max(period, 1)) for step in range(begin, begin + length)}


def evaluated_steps(case: Case) -> set[int]:
    """Steps that an evaluation, as it was configured, may lengthen: trainers count from 0 or 1, before or after."""
    timeline, period = case.timeline, case.log.number("eval_interval")
    if timeline is None or not period or period < _LEAST_EVAL_INTERVAL:
        return set()
    return {int(s) for s in timeline.steps if s >= period - 1 and any((s + d) % period == 0 for d in (-1, 0, 1))}


def compiled_steps(case: Case) -> list[int]:
    """Steps, after the first ones, that a compilation is told of before."""
    rank = case.log.best_rank
    if rank is None or not case.log.compiles:
        return []
    lines = case.log.steps[rank]
    at = np.searchsorted([s.line for s in lines], case.log.compiles)
    return sorted({lines[int(i)].step for i in at if WARM_UP_STEPS <= i < len(lines)})


def spikes(case: Case) -> list[Spike]:
    """Steps far above the level around them; the first ones and those after a save are left out."""
    timeline = case.timeline
    if timeline is None or len(timeline) < 4 * WARM_UP_STEPS:
        return []
    keep = np.ones(len(timeline), dtype=bool)
    keep[:WARM_UP_STEPS] = False
    after = save_steps(case)
    keep &= np.array([not ({int(s), int(s) - 1, int(s) - 2} & after) for s in timeline.steps])
    keep &= ~np.isin(timeline.steps, list(evaluated_steps(case)))
    keep |= np.isin(timeline.steps, compiled_steps(case))  # a compilation is told of: no save or evaluation hides it
    values = timeline.seconds[keep]
    if len(values) < 2 * WARM_UP_STEPS:
        return []
    level = running_median(values, 21)
    noise = robust_sigma(values - level)
    plain = values > level + 12.0 * noise
    often = plain & (values > _SMALL_SPIKE * level)
    high = plain & (values > _SPIKE * level) & (values - level >= _SPIKE_LOST_S)
    if float((values - level)[often].sum()) > max(UNEVEN_SHARE * float(values.sum()), _SPIKE_LOST_S):
        high = often
    index = np.flatnonzero(keep)[high]
    return [_spike(timeline, int(i), float(near)) for i, near in zip(index, level[high], strict=True)]


def _spike(timeline: Timeline, i: int, level: float) -> Spike:
    end = float(timeline.ends[i])
    seconds = float(timeline.seconds[i])
    return Spike(int(timeline.steps[i]), seconds, level, end - seconds, end)


def saves(case: Case) -> list[Save]:
    """What each save cost: the longest of the steps it can lengthen, less a normal step."""
    timeline = case.timeline
    if timeline is None or len(timeline) < 4 * WARM_UP_STEPS:
        return []
    level = float(np.median(timeline.seconds[WARM_UP_STEPS:]))
    where = {int(s): i for i, s in enumerate(timeline.steps)}
    out = []
    for step in sorted(save_steps(case)):
        own = [float(timeline.seconds[where[s]]) for s in (step, step + 1, step + 2) if where.get(s, 0) > 0]
        if own:
            out.append(Save(step, max(own) - level))
    return out


def long_saves(case: Case) -> list[Save]:
    """Saves so long that they look like a hang: minutes, and many steps' worth."""
    timeline = case.timeline
    if timeline is None:
        return []
    level = float(np.median(timeline.seconds[WARM_UP_STEPS:])) if len(timeline) > WARM_UP_STEPS else math.inf
    return [s for s in saves(case) if s.extra_s >= _LONG_SAVE_S and s.extra_s >= _LONG_SAVE_STEPS * level]


def growing_saves(case: Case) -> tuple[float, float] | None:
    """Cost of the early and of the late saves when the late ones, or some in a row, take clearly longer; needs four."""
    costs = [s.extra_s for s in saves(case)]
    if len(costs) < 4 or case.timeline is None:
        return None
    # Left out are steps where nothing was saved after all: they cost little, also measured by a normal step.
    nothing = min(0.2 * float(np.median(costs)), 0.5 * float(np.median(case.timeline.seconds[WARM_UP_STEPS:])))
    costs = [c for c in costs if c > nothing]
    if len(costs) < 4:
        return None
    third = max(2, len(costs) // 3)
    early, late = float(np.median(costs[:third])), float(np.median(costs[-third:]))
    rising = np.mean(np.diff(costs) > 0) >= 0.6 or late >= _PLAINLY * early
    if early > 0 and late >= _GROWN * early and late - early >= 30.0 and rising:
        return early, late
    return _slow_for_a_while(costs)


def _slow_for_a_while(costs: list[float]) -> tuple[float, float] | None:
    """Usual and longer cost where several saves in a row were plainly slow and those before and after were not."""
    usual = float(np.median(np.sort(costs)[: (len(costs) + 1) // 2]))
    slow = np.array(costs) >= max(_PLAINLY * usual, usual + 30.0)
    edges = np.flatnonzero(np.diff(slow, prepend=False, append=False))
    longest = max(
        ((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)), key=lambda s: s[1] - s[0], default=None
    )
    if longest is None or longest[1] - longest[0] < _IN_A_ROW:
        return None
    return usual, float(np.median(costs[longest[0] : longest[1]]))


def loss_trouble(case: Case) -> Loss | None:
    """The first step from which the loss is not a number, or stays far above its best for good."""
    rank = case.log.best_rank
    lines = [s for s in case.log.steps[rank] if s.loss is not None] if rank is not None else []
    bad = next((s for s in lines if s.loss is not None and not math.isfinite(s.loss)), None)
    if bad is not None:
        return Loss(bad.step, f"the loss is {bad.loss} from step {bad.step} on")
    values: Floats = np.array([s.loss for s in lines], dtype=np.float64)
    if len(values) < 4 * WARM_UP_STEPS:
        return None
    smooth = running_median(values, 5)
    best = np.minimum.accumulate(smooth)
    noise = robust_sigma(values - smooth)
    far = smooth - best > np.maximum(0.2 * np.abs(best), 8.0 * noise)
    lasting = len(far) - int(np.argmin(far[::-1])) if not far.all() else 0
    if not far[-1] or len(far) - lasting < 8:  # it came back, or has only just begun
        return None
    since = lasting
    return Loss(lines[since].step, f"the loss rose from {best[since]:.3f} to {smooth[-1]:.3f} and stayed up")
