"""Which steps say nothing about the speed of training, and why: the one rule for all who look at step times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from trackwalker.logs.facts import LogFacts
from trackwalker.record.journal import Pause
from trackwalker.record.steps import Bools, Floats, Ints
from trackwalker.stats.segments import robust_sigma, running_median

Windows = list[tuple[float, float]]  # begin and end in unix seconds

WARM_UP_STEPS = 5  # caches fill, clocks settle
SPIKE = 1.3  # times the level around it: a single slow step
SPIKE_LOST_S = 5.0  # and no matter for less
_PLAIN = 12.0  # times the noise around the level: nobody takes that for noise
_SMALL_SPIKE = 1.1  # where they come so often that they cost the run something
UNEVEN_SHARE = 0.03  # of the run's time, lost in single slow steps or short bouts: then it is no jitter
_AFTER_SAVE = 3  # a save lengthens its own step and, written in the background, the next two
_PROFILER_MOST = 20  # steps: traces of more are too large for anybody
_PROFILER_DUMP = 2  # writing the trace slows the step that ends it and the next
_LEAST_EVAL_INTERVAL = 10  # more often, and hardly a step would be left to look at
_FEW, _FEW_SHARE = 3, 0.02  # steps that waited for a compilation: more are no accident but the run's own speed
_SLIVER = 0.01  # of a step: less overlap with a pause lengthens nothing
# Saves that nobody tells of.
_LEAST_PERIOD = 20  # steps
_MOST_PAIRED = 30  # long steps among which a rhythm is looked for
_IN_A_ROW = 3
_ON_TIME = 0.85  # of the places of a rhythm
_ALL_ALONG = 1.2  # periods before the first and after the last of them
_BLOCK = 21  # steps
_USUAL_PACE = 9  # rows around one
_UNLIKE = 3.0  # times as long: then these are not the same thing again and again

# In order of importance: the first that fits is the reason. The words are those of the journal's phases.
REASONS = ("restart", "compile", "checkpoint", "profiler", "eval", "warm-up")
_PAUSES = {"compile": "compile", "checkpoint": "checkpoint", "eval": "eval", "capture": "profiler"}


@dataclass(frozen=True)
class Masks:
    """For every step of a series the reasons it may be slow; several may fit one step."""

    reasons: dict[str, Bools]
    recompiled: Bools  # steps after the first ones that a compilation is told of before, whatever else fits them
    size: int

    def of(self, *reasons: str) -> Bools:
        """Steps that one of these reasons fits."""
        out = np.zeros(self.size, np.bool_)
        for reason in reasons:
            out |= self.reasons[reason]
        return out

    @property
    def label(self) -> NDArray[np.str_]:
        """One reason or "" for each step."""
        label = np.full(self.size, "", dtype="<U10")
        for name in reversed(REASONS):
            label[self.reasons[name]] = name
        return label

    def only(self, reason: str) -> Bools:
        """Steps whose first reason is this one."""
        return self.reasons[reason] & ~self.of(*REASONS[: REASONS.index(reason)])

    @property
    def any(self) -> Bools:
        """Steps that say nothing about the speed of training."""
        out = self.of(*REASONS)
        few = int(np.count_nonzero(self.recompiled)) <= max(_FEW, _FEW_SHARE * self.size)
        return out if few else out & ~(self.recompiled & self.only("compile"))

    @property
    def left_out(self) -> dict[str, int]:
        """How many steps are left out, by reason."""
        out = self.any
        return {name: n for name in REASONS if (n := int(np.count_nonzero(out & self.only(name))))}

    def undisturbed(self, seconds: Floats) -> Bools:
        """The timed steps that no reason fits; all timed ones where nothing else is left."""
        known = np.isfinite(seconds) & (seconds > 0)
        return chosen if (chosen := known & ~self.any).any() else known


def masks(
    step: Ints,
    seconds: Floats,
    facts: LogFacts,
    *,
    line: Floats | None = None,
    end: Floats | None = None,
    pauses: Iterable[Pause] = (),
    traced: Iterable[tuple[float, float]] = (),
    restarts: Iterable[int] = (),
) -> Masks:
    """Mark the steps of a series, in the order they were done.

    `line` places what the log tells of between two steps, `end` what the ranks' journal and the profiler's files tell;
    `restarts` are the first steps of later attempts, where the series holds each step only once.
    """
    size = len(step)
    found = {name: np.zeros(size, np.bool_) for name in REASONS}
    if not size:
        return Masks(found, np.zeros(0, np.bool_), 0)
    begun = np.diff(step, prepend=step[0] + 1) <= 0  # first steps of every attempt
    starts = np.flatnonzero(begun | np.isin(step, list(restarts)))
    for start in starts:
        found["warm-up"][start : start + WARM_UP_STEPS] = True
    found["restart"][starts[1:]] = True
    for shift in range(_AFTER_SAVE):
        found["checkpoint"] |= holds(step, saved_steps(step, seconds, facts), shift)
    found["profiler"] = np.isin(step, sorted(profiled_steps(step[starts], int(step.max()), facts)))
    found["eval"] = _evaluated(step, facts)
    recompiled = np.zeros(size, np.bool_)
    if line is not None:
        recompiled[_behind(np.array(facts.compiles), line)] = True
        found["eval"][_behind(np.array(facts.evals), line)] = True
        for told in facts.profiles:
            traced_at = _behind(np.array(told), line)
            if len(traced_at):
                # Who says once that it is active records a few steps now and then, each time before it writes.
                began = max(traced_at[0], traced_at[-1] - _PROFILER_MOST)
                found["profiler"][began : traced_at[-1] + _PROFILER_DUMP] = True
    if end is not None and np.isfinite(end).any():
        begin = end - seconds
        for phase, windows in _windows(pauses).items():
            hit = _during(begin, end, windows)
            if phase == "compile":
                recompiled |= hit
            else:
                found[_PAUSES[phase]] |= hit
        found["profiler"] |= _during(begin, end, traced)
    first = np.zeros(size, np.bool_)
    first[starts] = True  # the first step waits for its own compilation; a save at step 0 lengthens step 1
    found["checkpoint"] &= ~first
    found["compile"] = first | (recompiled & ~found["checkpoint"])
    return Masks(found, recompiled & ~found["warm-up"], size)


def holds(step: Ints, wanted: Iterable[int], after: int = 0) -> Bools:
    """Where a series holds one of these steps, or the one so many `after`: a row stands for all since that before."""
    sought = np.array(sorted(wanted), np.int64) + after
    return np.searchsorted(sought, step, "right") > np.searchsorted(sought, _before(step), "right")


def stands_for(step: Ints) -> Ints:
    """How many steps each row of a series tells of: all since the one before, where it tells of every n-th.

    A hole of its own is no rhythm: what happened in it nobody knows.
    """
    apart = step - _before(step)
    return np.minimum(apart, max(1, int(np.median(apart)))) if len(step) else apart


def row_seconds(step: Ints, seconds: Floats) -> Floats:
    """What each row of a series took: its own step, and those before it that nobody told of, at their usual pace."""
    untold = stands_for(step) - 1
    if not untold.any():
        return seconds
    return seconds + untold * np.fmin(seconds, running_median(seconds, _USUAL_PACE))


def _before(step: Ints) -> Ints:
    """The last step that a row of a series does not stand for."""
    before = np.concatenate([step[:1] - 1, step[:-1]])
    return np.where(before < step, before, step - 1)  # where it begins again


def _behind(told: Ints, line: Floats) -> Ints:
    """The steps that something told of between two lines lengthened: the second of the two."""
    known = np.flatnonzero(np.isfinite(line))  # a log may stop before the run does
    if (np.diff(line[known]) <= 0).any():
        return np.zeros(0, np.int64)
    at = np.searchsorted(line[known], told)
    return known[at[(at > 0) & (at < len(known))]]


def single_slow(seconds: Floats, keep: Bools) -> tuple[Ints, Floats]:
    """Where single steps among those to keep lie far above the level around them, and that level."""
    values = seconds[keep]
    if len(seconds) < 4 * WARM_UP_STEPS or len(values) < 2 * WARM_UP_STEPS:
        return np.zeros(0, np.int64), np.zeros(0)
    level = running_median(values, 21)
    plain = values > level + _PLAIN * robust_sigma(values - level)
    if plain.any():
        # Bouts side by side lift the level they are measured by: once more, without what is plain already.
        level = running_median(np.interp(np.arange(len(values)), np.flatnonzero(~plain), values[~plain]), 21)
        plain |= values > level + _PLAIN * robust_sigma((values - level)[~plain])
    often = plain & (values > _SMALL_SPIKE * level)
    high = plain & (values > SPIKE * level) & (values - level >= SPIKE_LOST_S)
    if float((values - level)[often].sum()) > max(UNEVEN_SHARE * float(values.sum()), SPIKE_LOST_S):
        high = often
    return np.flatnonzero(keep)[high], level[high]


def save_period(facts: LogFacts) -> int | None:
    """Steps between saves, None where saving is off or its period is not stated (never a guessed default)."""
    if (facts.setting("enable_checkpointing") or "").lower() not in ("true", "1", "yes", ""):
        return None
    period = facts.number("checkpoint_period")
    return period if period and period > 0 else None


def saved_steps(step: Ints, seconds: Floats, facts: LogFacts) -> set[int]:
    """Steps after which a checkpoint was (or should have been) written."""
    period, steps = save_period(facts), set(facts.saves)
    if period:
        steps |= {int(s) for s in step if s > 0 and s % period == 0}
    return steps or _untold_saves(step, seconds, facts)


def profiled_steps(firsts: Ints, last: int, facts: LogFacts) -> set[int]:
    """Steps the profiler was set to record, counted from the first of each attempt, and those it writes its dump in."""
    # MaxText prints an empty setting as it is, or since 2026 as ProfilerType.NONE.
    if (facts.setting("profiler") or "").strip("'\"").lower().rpartition(".")[2] in ("", "none"):
        return set()
    length = (facts.number("profiler_steps") or 1) + _PROFILER_DUMP
    period = facts.number("profile_periodically_period") or 0
    skip = facts.number("skip_first_n_steps_for_profiler") or 0
    out: set[int] = set()
    for begin in (int(s) + skip for s in firsts):
        again = range(begin, last + 1, period) if period > 0 else (begin,)
        out |= {step for at in again for step in range(at, at + length)}
    return out


def _evaluated(step: Ints, facts: LogFacts) -> Bools:
    """Steps that an evaluation, as it was configured, may lengthen: trainers count from 0 or 1, before or after."""
    period = facts.number("eval_interval")
    if not period or period < _LEAST_EVAL_INTERVAL:
        return np.zeros(len(step), np.bool_)
    before = _before(step)
    near = [(step + d) // period > (before + d) // period for d in (-1, 0, 1)]
    return np.asarray((step >= period - 1) & np.any(near, axis=0))


def _untold_saves(step: Ints, seconds: Floats, facts: LogFacts) -> set[int]:
    """Saves of a trainer that says nothing of them: long steps at equal distances all along, all about as long."""
    if len(step) < 4 * WARM_UP_STEPS or facts.setting("enable_checkpointing") or facts.setting("eval_interval"):
        return set()  # a trainer that tells its settings tells these
    values, steps = seconds[WARM_UP_STEPS:], step[WARM_UP_STEPS:]
    if not np.isfinite(values).all() or not _any_long(values):
        return set()
    extra = values - running_median(values, 21)
    grid = _grid(steps[(extra > (SPIKE - 1.0) * (values - extra)) & (extra >= SPIKE_LOST_S)])
    costs = extra[np.isin(steps, grid)]
    if not grid or float(costs.max()) > _UNLIKE * float(costs.min()):
        return set()
    # What begins in the middle of a run, or ends there, is no habit of the trainer.
    period = _ALL_ALONG * float(np.max(np.diff(grid)))
    all_along = grid[0] - int(step[0]) <= period and int(step[-1]) - grid[-1] <= period
    return {int(s) - 1 for s in grid} if all_along else set()


def _any_long(values: Floats) -> bool:
    """Whether any step can be long: a quick look, as most runs have none and a running median of a long run is slow."""
    blocks = len(values) // _BLOCK
    if blocks < 3:
        return True
    lows = values[: blocks * _BLOCK].reshape(blocks, _BLOCK).min(axis=1)
    highs = values[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
    around = np.minimum(lows, np.minimum(np.append(lows[1:], lows[-1]), np.append(lows[0], lows[:-1])))
    rest = values[blocks * _BLOCK :]
    return bool((highs - around >= SPIKE_LOST_S).any() or (rest - lows[-1] >= SPIKE_LOST_S).any())


def _grid(steps: Ints) -> list[int]:
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


def _windows(pauses: Iterable[Pause]) -> dict[str, Windows]:
    """When the ranks were busy with something else, by their own journal."""
    out: dict[str, Windows] = {name: [] for name in _PAUSES}
    for pause in pauses:
        if pause.phase in out and pause.state == "end" and not pause.background and np.isfinite(pause.seconds):
            out[pause.phase].append((pause.at - pause.seconds, pause.at))
    return out


def _during(begin: Floats, end: Floats, windows: Iterable[tuple[float, float]]) -> Bools:
    """Steps that overlap a window by more than a sliver of themselves."""
    hit = np.zeros(len(begin), np.bool_)
    for left, right in windows:
        common = np.minimum(end, right) - np.maximum(begin, left)
        hit |= np.nan_to_num(common, nan=-1.0) > _SLIVER * np.nan_to_num(end - begin, nan=0.0)
    return hit
