"""Onsets in the order of cause and effect: what a cause brought about cannot have begun before it."""

from __future__ import annotations

from datetime import UTC, datetime

from trackwalker.diagnose.verdict import Cause, Onset, Verdict

_EFFECTS = ("consequence", "mechanism")


def in_order(verdict: Verdict) -> Verdict:
    """The verdict with no root later than its own consequence.

    Each onset is measured by itself and known to some seconds or steps. A consequence that was seen before every root
    bounds when the first of them began: that root began then at the latest, and is as uncertain as the two lie apart.
    """
    roots = [c for c in verdict.causes if c.role == "root" and _time(c) is not None]
    effects = [(t, c) for c in verdict.causes if c.role in _EFFECTS and (t := _time(c)) is not None]
    if not roots or not effects:
        return verdict
    first = min(roots, key=lambda c: _time(c) or 0.0)
    seen, effect = min(effects, key=lambda pair: pair[0])
    began = _time(first)
    if began is None or seen >= began or first.onset is None or effect.onset is None:
        return verdict
    steps = [s for s in (first.onset.step, effect.onset.step) if s is not None]
    moved = Onset(
        time=effect.onset.time,
        step=min(steps) if steps else None,
        uncertainty_s=max(first.onset.uncertainty_s or 0.0, began - seen),
    )
    causes = [c.model_copy(update={"onset": moved}) if c is first else c for c in verdict.causes]
    return verdict.model_copy(update={"causes": causes})


def _time(cause: Cause) -> float | None:
    if cause.onset is None or not cause.onset.time:
        return None
    try:
        found = datetime.fromisoformat(cause.onset.time)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
