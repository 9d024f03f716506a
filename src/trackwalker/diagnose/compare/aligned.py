"""Two jobs step by step: which steps can be compared, how fast each was in them, and when that was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Span
from trackwalker.record.speeds import Compared, Series, compare_speeds
from trackwalker.record.timeline import Ints

_MOST_SPANS = 4
_SHORTEST_SPAN_S = 30.0
_EDGE_S = 5.0


@dataclass(frozen=True)
class Aligned(Compared):
    """Two jobs' speeds with the evidence for them."""

    evidence: tuple[str, ...] = ()


def align(a: Case, b: Case, book: EvidenceBook) -> Aligned | None:
    """Compare the speeds of two jobs; None where one has too few usable steps."""
    one, two = _series(a), _series(b)
    found = compare_speeds(one, two) if one is not None and two is not None else None
    return Aligned(**vars(found), evidence=_evidence(found, a, b, book)) if found is not None else None


def _series(case: Case) -> Series | None:
    timeline = case.timeline
    if timeline is None:
        return None
    reason = np.where(case.masks.any, case.masks.label, "")
    return Series(timeline.steps, timeline.seconds, timeline.tgs, reason)


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


def _evidence(found: Compared, a: Case, b: Case, book: EvidenceBook) -> tuple[str, ...]:
    ids = []
    for word, case, steps, level in (("A", a, found.steps_a, found.level_a), ("B", b, found.steps_b, found.level_b)):
        why = found.left_out(word == "B")
        left_out = f"left out: {why}" if why else "none left out"
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
    source = f"{a.job.id} and {b.job.id}: mean difference of the logarithms of {found.unit}"
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
