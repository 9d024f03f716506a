"""The course of a run beyond its speed: single slow steps, saves, the loss, compilations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.record.masks import WARM_UP_STEPS, holds, saved_steps, single_slow
from trackwalker.record.phases import LEAST_LOST_S
from trackwalker.record.timeline import Floats, Timeline
from trackwalker.stats.segments import robust_sigma, running_median

_LONG_SAVE_S = 300.0
_LONG_SAVE_STEPS = 10.0
_PLAINLY = 2.5  # times as long: no jitter of a shared store
_IN_A_ROW = 3
_AROUND_A_SAVE = 41  # steps: a save and what it writes later are a few of them
_APART = 1.1  # the quickest of the longer ones against the longest before: two crowds
_COSTS = 0.03  # of the time: as for a slow phase
_GROWN = 1.8  # a save against the earlier ones


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


def save_steps(case: Case) -> set[int]:
    """Steps after which a checkpoint was (or should have been) written."""
    timeline = case.timeline
    return set(case.log.saves) if timeline is None else saved_steps(timeline.steps, timeline.seconds, case.log)


def profiled_steps(case: Case) -> set[int]:
    """Steps the profiler recorded, and those it wrote its dump in."""
    timeline = case.timeline
    return set() if timeline is None else set(timeline.steps[case.masks.of("profiler")].tolist())


def compiled_steps(case: Case) -> list[int]:
    """Steps, after the first ones, that a compilation is told of before."""
    timeline = case.timeline
    return [] if timeline is None else timeline.steps[case.masks.recompiled].tolist()


def spikes(case: Case) -> list[Spike]:
    """Steps far above the level around them; the first ones and those after a save are left out."""
    timeline = case.timeline
    if timeline is None:
        return []
    # A compilation is told of: no save or evaluation hides it.
    keep = ~case.masks.of("checkpoint", "eval", "warm-up") | case.masks.recompiled
    index, level = single_slow(timeline.seconds, keep)
    return [_spike(timeline, int(i), float(near)) for i, near in zip(index, level, strict=True)]


def _spike(timeline: Timeline, i: int, level: float) -> Spike:
    end = float(timeline.ends[i])
    seconds = float(timeline.seconds[i])
    return Spike(int(timeline.steps[i]), seconds, level, end - seconds, end)


def saves(case: Case) -> list[Save]:
    """What each save cost: the longest of the steps it can lengthen, less a normal step."""
    timeline = case.timeline
    if timeline is None or len(timeline) < 4 * WARM_UP_STEPS:
        return []
    # A normal step of its own time: in a slow phase all steps are longer, whoever slows them.
    level = running_median(timeline.seconds, _AROUND_A_SAVE)
    out = []
    for step in sorted(save_steps(case)):
        rows = {int(i) for after in range(3) for i in np.flatnonzero(holds(timeline.steps, [step], after))}
        near = sorted(rows - {0})
        if near:
            took = [timeline.seconds[i] for i in near]
            # Many trainers do not count a save as a part of any step: it lies between the end of one and of the next.
            took += [timeline.ends[i] - timeline.ends[i - 1] for i in near] if timeline.exact else []
            out.append(Save(step, float(np.nanmax(took)) - float(level[near[0]])))
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
    found = _slow_for_a_while(costs) or _slow_from_one_on(costs, case.timeline)
    # What cost less than a dip of the speed may is no incident either, however many times the usual it is.
    return found if found and sum(max(0.0, c - found[0]) for c in costs) >= LEAST_LOST_S else None


def _slow_from_one_on(costs: list[float], timeline: Timeline) -> tuple[float, float] | None:
    """Cost before and after one save: all from it on were longer than any before, and cost what a slow phase may."""
    between = float(timeline.seconds[WARM_UP_STEPS:].sum()) / len(costs)
    splits = range(_IN_A_ROW, len(costs) - _IN_A_ROW + 1)
    k = max(splits, key=lambda k: min(costs[k:]) / max(costs[:k]), default=0)
    if not k or min(costs[k:]) < _APART * max(costs[:k]):
        return None
    early, late = float(np.median(costs[:k])), float(np.median(costs[k:]))
    return (early, late) if late >= _GROWN * early and late - early >= _COSTS * between else None


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
    losses = case.log.steps.losses
    steps = list(losses)
    bad = next((s for s in steps if not math.isfinite(losses[s])), None)
    if bad is not None:
        return Loss(bad, f"the loss is {losses[bad]} from step {bad} on")
    values: Floats = np.array(list(losses.values()), dtype=np.float64)
    if len(values) < 4 * WARM_UP_STEPS:
        return None
    # The lowest of thousands is a lucky one: of a long run, levels are those of longer stretches.
    smooth = running_median(values, max(5, len(values) // 200))
    best = np.minimum.accumulate(smooth)
    noise = robust_sigma(values - smooth)
    far = smooth - best > np.maximum(0.2 * np.abs(best), 8.0 * noise)
    lasting = len(far) - int(np.argmin(far[::-1])) if not far.all() else 0
    if not far[-1] or len(far) - lasting < max(8, len(far) // 100):  # it came back, or has only just begun
        return None
    since = lasting
    return Loss(steps[since], f"the loss rose from {best[since]:.3f} to {smooth[-1]:.3f} and stayed up")
