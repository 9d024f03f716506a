"""Two jobs step by step: which steps can be compared, how fast each was in them, and when that was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.course import compiled_steps, profiled_steps, save_steps, spikes
from trackwalker.diagnose.evidence import EvidenceBook
from trackwalker.diagnose.symptoms import Span
from trackwalker.diagnose.timeline import Floats, Ints, Timeline
from trackwalker.stats.paired import FEWEST, Difference, paired, unpaired

WARM_UP = 8  # steps after the later start: compilation, caches, the first saves
_FEWEST_WARM_UP = 3  # of a short run
_BLIPS = 2  # as many single slow steps are an accident, more are the difference itself
_MOST_SPANS = 4
_SHORTEST_SPAN_S = 30.0
_EDGE_S = 5.0

UNITS = {"tgs": "tokens/s/device", "steps-per-second": "steps/s"}


@dataclass(frozen=True)
class Aligned:
    """The steps compared and what they say; without common steps the two levels are compared."""

    of: str
    steps_a: Ints
    steps_b: Ints
    level_a: float  # geometric mean, as the difference is one of logarithms
    level_b: float
    difference: Difference
    in_common: bool
    evidence: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What the levels are counted in."""
        return UNITS[self.of]


def align(a: Case, b: Case, book: EvidenceBook) -> Aligned | None:
    """Compare the speeds of two jobs; None where one has too few usable steps."""
    one, two = a.timeline, b.timeline
    if one is None or two is None or not len(one) or not len(two):
        return None
    of = "tgs" if np.isfinite(one.tgs).any() and np.isfinite(two.tgs).any() else "steps-per-second"
    later = max(int(one.steps[0]), int(two.steps[0]))
    common = np.intersect1d(one.steps, two.steps)
    warm = WARM_UP if len(common) >= 4 * WARM_UP else _FEWEST_WARM_UP
    usable_a, usable_b = _usable(a, one), _usable(b, two)
    kept = np.intersect1d(one.steps[usable_a], two.steps[usable_b])
    kept = kept[kept >= later + warm]
    in_common = len(kept) >= FEWEST
    if in_common:
        steps_a = steps_b = kept
    else:
        steps_a = one.steps[usable_a & (one.steps >= one.steps[0] + warm)]
        steps_b = two.steps[usable_b & (two.steps >= two.steps[0] + warm)]
    x, y = _speeds(one, steps_a, of), _speeds(two, steps_b, of)
    difference = paired(x, y) if in_common else unpaired(x, y)
    if difference is None:
        return None
    found = Aligned(of, steps_a, steps_b, _rounded(x), _rounded(y), difference, in_common)
    return Aligned(**{**found.__dict__, "evidence": _evidence(found, a, b, book)})


def spans(case: Case, steps: Ints) -> list[Span]:
    """The longest stretches of time that hold only these steps, the longest first."""
    timeline = case.timeline
    if timeline is None or not len(steps):
        return []
    inside = np.isin(timeline.steps, steps) & np.isfinite(timeline.ends)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], inside.astype(int), [0]])))
    found = []
    for first, after in zip(edges[::2], edges[1::2], strict=True):
        start, end = float(timeline.ends[first] - timeline.seconds[first]), float(timeline.ends[after - 1])
        if end - start >= _SHORTEST_SPAN_S + 2 * _EDGE_S:  # a scrape at the edge may show what came before or after
            found.append(Span(start + _EDGE_S, end - _EDGE_S))
    longest = sorted(found, key=lambda s: (-s.seconds, s.start))[:_MOST_SPANS]
    return sorted(longest, key=lambda s: s.start)


def _usable(case: Case, timeline: Timeline) -> NDArray[np.bool_]:
    """Steps without a save, a compilation, the profiler or a single accident in them."""
    saves = save_steps(case)
    out = {s + i for s in saves for i in range(3)} | profiled_steps(case) | set(compiled_steps(case)[:_BLIPS])
    single = [s.step for s in spikes(case) if s.step not in out]
    if len(single) <= _BLIPS:
        out |= set(single)
    mask = ~np.isin(timeline.steps, sorted(out))
    # Nearly every step follows a save: then they are the run.
    return mask if mask.sum() >= FEWEST else np.ones(len(timeline), dtype=bool)


def _speeds(timeline: Timeline, steps: Ints, of: str) -> Floats:
    at = np.searchsorted(timeline.steps, steps)
    return timeline.tgs[at] if of == "tgs" else 1.0 / np.maximum(timeline.seconds[at], 1e-9)


def _rounded(values: Floats) -> float:
    good = values[np.isfinite(values) & (values > 0)]
    mean = float(np.exp(np.log(good).mean()))
    return round(mean, 1) if mean >= 10 else round(mean, 5)


def _evidence(found: Aligned, a: Case, b: Case, book: EvidenceBook) -> tuple[str, ...]:
    ids = []
    left_out = "saves, compilation, profiler, single slow and first steps left out"
    for word, case, steps, level in (("A", a, found.steps_a, found.level_a), ("B", b, found.steps_b, found.level_b)):
        source = case.timeline.source if case.timeline is not None else case.log.path.name
        where = f"steps {int(steps[0])}..{int(steps[-1])}, {left_out}"
        says = f"{word} ({case.job.id}): {level:g} {found.unit} in {len(steps)} steps"
        values = {"mean": level, "steps": float(len(steps))}
        ids.append(book.add("progress", f"{case.job.id}/{source}: geometric mean of {where}", says, values))
    d, (low, high) = found.difference, found.difference.interval()
    how = "step by step" if found.in_common else "level against level, as no steps are common"
    says = (
        f"B against A, {how}: {percent(d.change)}, 95 % interval {percent(low)} to {percent(high)}; "
        f"a difference of {percent(d.detectable, False)} would have been seen nine times in ten"
    )
    values = {
        "change_pct": 100 * d.change,
        "low_pct": 100 * low,
        "high_pct": 100 * high,
        "detectable_pct": 100 * d.detectable,
        "steps": float(d.steps),
    }
    source = f"{a.job.id} and {b.job.id}: mean difference of the logarithms of {found.unit}, {left_out}"
    ids.append(book.add("progress", source, says, values))
    if d.phases and found.in_common:
        steps = found.steps_a
        told = [f"{percent(p.level - 1)} in steps {steps[p.start]}..{steps[p.end - 1]}" for p in d.phases[:6]]
        source = f"{a.job.id} and {b.job.id}: levels of the ratio of {found.unit}"
        ids.append(book.add("progress", source, "B against A by phases: " + ", ".join(told)))
    return tuple(ids)


def percent(share: float, sign: bool = True) -> str:
    """A share as a percentage with the digits a small difference needs."""
    value = 100.0 * share
    digits = 2 if abs(value) < 2 else 1
    return f"{value:+.{digits}f} %" if sign else f"{value:.{digits}f} %"
