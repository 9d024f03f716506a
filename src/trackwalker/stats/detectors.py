"""The vocabulary of playbook tests: each takes one number per host and says who stands out.

A detector never decides a diagnosis; it answers one question about one set of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trackwalker.stats.segments import Floats, robust_sigma

Values = Mapping[str, float]

# Three quantifiers and no other share: every one; all but one in twenty, who may be odd; most, where somebody may be
# the very one that the others wait for.
NEARLY_ALL, MOST = 0.95, 2.0 / 3.0
_SEVERAL = 3  # members that have no port, cable or card in common
_SIGMAS = 4.0  # as in the sweep of all series (`stats.deviations`)


@dataclass(frozen=True)
class Finding:
    """Whether the detector fired, for whom, and the numbers it went by."""

    fired: bool
    hosts: tuple[str, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)


def outliers(
    values: Values, *, factor: float, floor: float = 0.0, share: float = 0.5, reference: Values | None = None
) -> Finding:
    """Hosts clearly above all others: at least `floor`, `factor` times the highest of the rest, and off its noise.

    At most `share` of the hosts can stand out; when more do, the condition is common, not theirs. With a
    `reference` (the same quantity before the onset) a host must also have risen by `factor` itself.
    """
    order = sorted(values, key=lambda h: (-values[h], h))
    n = len(order)
    numbers = {"hosts": float(n), "max": values[order[0]] if order else 0.0}
    if n < 2:
        return Finding(False, (), numbers)
    best: tuple[float, int] | None = None
    for k in range(1, max(1, int(n * share)) + 1):
        if k >= n or values[order[k - 1]] < floor:
            break
        lowest = values[order[k - 1]]
        ratio = lowest / max(values[order[k]], floor / factor / 2, 1e-12)
        # The noise of the rest is asked last: of thousands of members hardly any gets this far.
        if ratio >= factor and (best is None or ratio > best[0]):
            rest = np.array([values[h] for h in order[k:]])
            if lowest > float(np.median(rest)) + 6.0 * robust_sigma(rest):
                best = (ratio, k)
    if best is None:
        return Finding(False, (), {**numbers, "others_max": values[order[min(1, n - 1)]]})
    accused = order[: best[1]]
    if reference:
        known = [h for h in accused if h in reference]  # who was not measured before cannot be said to have risen
        accused = [h for h in known if values[h] >= factor * max(reference[h], floor / factor / 2)]
        rises = {h: values[h] - reference[h] for h in values if h in reference}
        others = max((rise for h, rise in rises.items() if h not in accused), default=0.0)
        if not accused or min(rises[h] for h in accused) <= 2.0 * others:  # one that had some before rose as much
            return Finding(False, (), {**numbers, "others_max": values[order[best[1]]]})
    numbers |= {
        "value": max(values[h] for h in accused),
        "lowest": min(values[h] for h in accused),
        "others_max": max(values[h] for h in order if h not in accused),
    }
    return Finding(True, tuple(sorted(accused)), numbers)


def lows(values: Values, *, ratio: float, share: float = 0.5, reference: Values | None = None) -> Finding:
    """Members clearly below all others: at most `ratio` of the lowest of the rest, and off its noise.

    The noise is that of ratios: among rates that differ by half, one that is nearly nothing still stands out.

    With a `reference` a member must also have fallen to at most `ratio` of its own earlier value; then it is enough
    that its change is off the noise of the others' changes, which holds nothing of what they differ by all the time.
    """
    order = sorted(values, key=lambda h: (values[h], h))
    n = len(order)
    numbers = {"hosts": float(n), "min": values[order[0]] if order else 0.0, "max": values[order[-1]] if order else 0.0}
    best = 0
    for k in range(1, max(1, int(n * share)) + 1):
        if k >= n:
            break
        highest = values[order[k - 1]]
        if highest <= ratio * values[order[k]] and (
            _below(values, order, k) or (reference and _below(_changes(values, reference), order, k))
        ):
            best = k
    accused = order[:best]
    if reference:
        accused = [h for h in accused if h in reference and values[h] <= ratio * reference[h]]
    if not accused:
        return Finding(False, (), numbers)
    others = [values[h] for h in order if h not in accused]
    numbers |= {"value": max(values[h] for h in accused), "others_min": min(others), "others_max": max(others)}
    return Finding(True, tuple(sorted(accused)), numbers)


def _below(values: Values, order: Sequence[str], k: int) -> bool:
    """Whether the highest of the first `k` lies off the noise of the rest, or further off than their whole range."""
    if not all(h in values for h in order):
        return False
    rest = _logs([values[h] for h in order[k:]])
    highest = float(_logs([max(values[h] for h in order[:k])])[0])
    apart = float(rest.min()) - highest
    return highest < float(np.median(rest)) - _SIGMAS * robust_sigma(rest) or 0.0 < float(np.ptp(rest)) <= apart


def _changes(values: Values, reference: Values) -> Values:
    return {h: v / reference[h] for h, v in values.items() if reference.get(h, 0.0) > 0}


def _logs(values: Sequence[float]) -> Floats:
    return np.log(np.maximum(values, 1e-9))


def hot(
    values: Values,
    *,
    limit: float,
    margin: float,
    share: float = 0.5,
    rise: float = 0.0,
    reference: Values | None = None,
) -> Finding:
    """Members at or above `limit` and `margin` above the median of all: a few that overheat, not a warm room.

    With a reference they also have to be hotter by `rise` than they were: who is warm all day is no news. One that has
    nobody beside it is compared with that past alone.
    """
    if not values:
        return Finding(False)
    before = reference or {}
    median = float(np.median(list(values.values())))
    over = tuple(
        sorted(
            h
            for h, v in values.items()
            if v >= limit
            and (v >= median + margin or (h in before and len(values) == 1))
            and v >= before.get(h, -np.inf) + rise
        )
    )
    rest = [v for h, v in values.items() if h not in over]
    numbers = {"max": max(values.values()), "median": median, "others_max": max(rest, default=0.0)}
    fired = bool(over) and (len(over) <= share * len(values) or len(values) == 1)
    return Finding(fired, over if fired else (), numbers | ({"value": max(values[h] for h in over)} if over else {}))


def several_rose(
    values: Values, *, reference: Values | None, factor: float, floor: float, share: float = MOST
) -> Finding:
    """A `share` of the members, several at least, rose by `factor` and to at least `floor`: a condition they share."""
    reference = reference or {}
    both = [h for h in values if h in reference]
    rose = [h for h in both if values[h] >= floor and values[h] >= factor * max(reference[h], floor / factor / 2)]
    fired = len(both) >= 2 and len(rose) >= max(share * len(both), min(_SEVERAL, len(both)))
    before = [reference[h] for h in both]
    numbers = {"rose": float(len(rose)), "hosts": float(len(both)), "before_max": max(before, default=0.0)}
    return Finding(fired, (), numbers | _span({h: values[h] for h in both or values}))


def alone_rose(values: Values, *, reference: Values | None, factor: float, floor: float) -> Finding:
    """The only member rose by `factor` and to at least `floor`: with nobody beside it, its own past is the control."""
    both = [h for h in values if h in (reference or {})]
    if len(values) != 1 or not both or reference is None:
        return Finding(False, (), _span(values))
    before, now = reference[both[0]], values[both[0]]
    fired = now >= floor and now >= factor * max(before, floor / factor / 2)
    return Finding(fired, tuple(both) if fired else (), {"value": now, "before_max": before} | _span(values))


def any_rose(values: Values, *, reference: Values | None, by: float = 0.0) -> Finding:
    """Members that rose above their own past, by `by` at least, whatever the others do."""
    past = reference or {}
    both = [h for h in values if h in past]
    rose = tuple(sorted(h for h in both if values[h] > past[h] and values[h] >= past[h] + by))
    numbers = {"before_max": max((past[h] for h in both), default=0.0)} | _span(values)
    return Finding(bool(rose), rose, numbers | ({"value": max(values[h] for h in rose)} if rose else {}))


def minority(values: Values, *, limit: float, share: float = 0.5, alone: bool = True) -> Finding:
    """Members above a limit while most are not: what happened to them did not happen to the others.

    A member that has nobody beside it is judged by the limit, unless `alone` forbids it: then only peers can tell.
    """
    over = tuple(sorted(h for h, v in values.items() if v > limit))
    rest = [v for h, v in values.items() if h not in over]
    numbers = {"max": max(values.values(), default=0.0), "others_max": max(rest, default=0.0)}
    fired = bool(over) and (len(over) <= share * len(values) or (alone and len(values) == 1))
    return Finding(fired, over if fired else (), numbers | {"value": numbers["max"]})


def silent(values: Values, *, alive: float, quiet: float = 0.0, share: float = 0.5) -> Finding:
    """Hosts at or below `quiet` while every other host shows at least `alive`: the one that does not even tick."""
    still = sorted(h for h, v in values.items() if v <= quiet)
    others = [v for h, v in values.items() if h not in still]
    fired = bool(still) and bool(others) and len(still) <= share * len(values) and min(others) >= alive
    numbers = {"others_min": min(others, default=0.0), "others_max": max(others, default=0.0)}
    return Finding(fired, tuple(still) if fired else (), numbers)


def all_at_least(values: Values, *, limit: float, share: float = NEARLY_ALL, least: int = 1) -> Finding:
    """Nearly every host, and at least so many, is at or above a limit."""
    passed = [v >= limit for v in values.values()]
    return _all(values, passed if sum(passed) >= least else [], share)


def all_at_most(values: Values, *, limit: float, share: float = NEARLY_ALL) -> Finding:
    """Nearly every host is at or below a limit."""
    return _all(values, [v <= limit for v in values.values()], share)


def all_fell_to(values: Values, *, reference: Values | None, ratio: float, share: float = NEARLY_ALL) -> Finding:
    """Nearly every host fell to at most `ratio` of what it had before."""
    reference = reference or {}
    both = [h for h in values if reference.get(h, 0.0) > 0]
    finding = _all({h: values[h] for h in both}, [values[h] <= ratio * reference[h] for h in both], share)
    before = [reference[h] for h in both]
    extra = {"before_min": min(before, default=0.0), "before_max": max(before, default=0.0)}
    return Finding(finding.fired, (), {**finding.numbers, **extra})


def most_lower(values: Values, *, reference: Values | None, ratio: float, wait: bool = False) -> Finding:
    """Half of the members or more, not all, fell to at most `ratio` of their own past and of what the others kept.

    Peers are no measure of a majority, its past is, and those who kept what they had are the control. `wait`: the
    others fell as well, as whoever waits does, but less.
    """
    past = reference or {}
    both = {h: v / past[h] for h, v in values.items() if past.get(h, 0.0) > 0}
    order = sorted(both, key=lambda h: (both[h], h))
    gaps = {k: both[order[k - 1]] / both[order[k]] for k in range((len(order) + 1) // 2, len(order)) if both[order[k]]}
    k = min(gaps, key=lambda k: (gaps[k], k), default=0)
    fell, others = order[:k], order[k:]
    fired = len(order) > 2 and k > 0 and gaps[k] <= ratio and both[order[k - 1]] <= ratio
    half = 0.5 * (1.0 + ratio)
    fired = fired and (both[others[-1]] <= half if wait else both[others[0]] >= half)
    numbers = {"others_min": min((values[h] for h in others), default=0.0), **_span(values)}
    if fired:
        numbers |= {"value": max(values[h] for h in fell), "before_min": min(past[h] for h in fell)}
    return Finding(fired, tuple(sorted(fell)) if fired else (), numbers)


def any_above(values: Values, *, limit: float = 0.0) -> Finding:
    """At least one host exceeds a limit; its silence is what rules a hypothesis out."""
    over = tuple(sorted(h for h, v in values.items() if v > limit))
    return Finding(
        bool(over), over, {"max": max(values.values(), default=0.0), "min": min(values.values(), default=0.0)}
    )


def missing(values: Values, *, expected: list[str]) -> Finding:
    """Hosts that should answer and do not, while most do: when most are silent, the recording is."""
    gone = tuple(h for h in expected if h not in values)
    fired = bool(gone) and 2 * len(gone) <= len(expected)
    return Finding(fired, gone if fired else (), {"seen": float(len(values))})


def equivalent(values: Values, *, group: list[str], margin: float) -> Finding:
    """The group's mean lies within `margin` of the others' mean: accused and controls cannot be told apart."""
    mine = [values[h] for h in group if h in values]
    others = [v for h, v in values.items() if h not in group]
    if not mine or len(mine) < len(group) or not others:
        return Finding(False, (), {"group": float(len(mine)), "others": float(len(others))})
    a, b = float(np.mean(mine)), float(np.mean(others))
    fired = b != 0 and abs(a - b) <= margin * abs(b)
    numbers = {"group_mean": a, "group_min": min(mine), "group_max": max(mine), "others_mean": b}
    return Finding(fired, (), {**numbers, "others_min": min(others), "others_max": max(others)})


def _all(values: Values, passed: list[bool], share: float) -> Finding:
    fired = bool(passed) and sum(passed) >= share * len(passed)
    return Finding(fired, (), _span(values))


def _span(values: Values) -> dict[str, float]:
    return {"min": min(values.values(), default=0.0), "max": max(values.values(), default=0.0)}
