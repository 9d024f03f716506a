"""Was a run slow, or was it noise: sequential judgement of one-sided slow-downs, and what each fault costs.

A fault can only slow a group of machines down, never speed it up. So the fast groups of one size are the yardstick of
that size, and a group is judged by how much likelier its times are with the smallest fault that matters than without.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

SMALLEST = math.log(1.05)  # log of the slow-down that has to be found
_PRIOR_SIGMA = 0.008  # run-to-run noise until the runs themselves tell
_PRIOR_RUNS = 6.0  # how many runs that belief is worth
_LEAST_SIGMA = 0.004
_ROUNDS = 4


def odds(difference: float, variance: float, smallest: float = SMALLEST) -> float:
    """Log of how much likelier a difference of log times is with the smallest fault than without any."""
    return (smallest * difference - smallest**2 / 2.0) / max(variance, 1e-12)


def fast_ones(levels: Mapping[int, float], gap: float = SMALLEST / 2.0) -> list[int]:
    """Those at the fast level: from the fastest on, each within half of the smallest fault of the mean before it."""
    order = sorted(levels, key=lambda key: (levels[key], key))
    chosen: list[int] = []
    total = 0.0
    for key in order:
        if chosen and levels[key] - total / len(chosen) > gap:
            break
        chosen.append(key)
        total += levels[key]
    return chosen


def between_runs(repeats: Collection[Sequence[float]]) -> float:
    """Standard deviation between runs of the same thing, from groups of log times that should be equal.

    Robust: a disturbed run among many is not the noise of all. Few runs are not trusted to tell it alone.
    """
    rest: list[float] = []
    for values in repeats:
        if len(values) > 1:
            mean, widen = sum(values) / len(values), math.sqrt(len(values) / (len(values) - 1))
            rest += [abs(v - mean) * widen for v in values]
    seen = 1.4826 * median(rest) if rest else 0.0
    variance = (_PRIOR_RUNS * _PRIOR_SIGMA**2 + len(rest) * seen**2) / (_PRIOR_RUNS + len(rest))
    return max(math.sqrt(variance), _LEAST_SIGMA)


@dataclass(frozen=True)
class Timing:
    """The log time of one run of a group of members."""

    members: frozenset[int]
    log_s: float


@dataclass(frozen=True)
class Fit:
    """A level for each group size, a slow-down for each fault, and what is left."""

    base: Mapping[int, float]
    effects: Mapping[frozenset[int], float]
    noise: float

    def expected(self, members: frozenset[int]) -> float | None:
        """Log time the model gives a group; None where its size was never seen without a fault."""
        if len(members) not in self.base:
            return None
        nodes = max((e for f, e in self.effects.items() if len(f) == 1 and f <= members), default=0.0)
        links = max((e for f, e in self.effects.items() if len(f) == 2 and f <= members), default=0.0)
        return self.base[len(members)] + nodes + links


def fit(timings: Sequence[Timing], faults: Collection[frozenset[int]]) -> Fit:
    """Additive model of log step times: the group's size, its slowest bad node and its slowest bad link.

    A synchronous step waits for the slowest node and the slowest link, so within each kind the largest counts, not the
    sum. Levels are medians: one disturbed run does not move them.
    """
    clean: dict[int, list[float]] = {}
    for t in timings:
        if not any(f <= t.members for f in faults):
            clean.setdefault(len(t.members), []).append(t.log_s)
    base = {size: median(values) for size, values in clean.items()}
    effects = {frozenset(f): 0.0 for f in faults}
    for _ in range(_ROUNDS):
        for fault in effects:
            alone = Fit(base, {f: e for f, e in effects.items() if f != fault}, 0.0)
            hit = [t for t in timings if fault <= t.members and len(t.members) in base]
            # Where another fault of the same kind is in the group, it may hide this one: least hidden first.
            fewest = min((sum(f <= t.members for f in effects) for t in hit), default=0)
            best = [t for t in hit if sum(f <= t.members for f in effects) == fewest]
            rest = [t.log_s - (alone.expected(t.members) or 0.0) for t in best]
            effects[fault] = max(median(rest), 0.0) if rest else 0.0
    model = Fit(base, effects, 0.0)
    left = [(t.log_s, model.expected(t.members)) for t in timings]
    rest = [abs(y - e) for y, e in left if e is not None]
    return Fit(base, effects, 1.4826 * median(rest) if rest else 0.0)
