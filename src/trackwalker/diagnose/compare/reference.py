"""A run against another of its kind: the only way to see that it was slow from its first step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from trackwalker.record.pattern import Pattern
from trackwalker.record.read import Record
from trackwalker.stats.medians import median
from trackwalker.stats.segments import long_run_noise

_LEAST_JOB = 0.01  # against one job: less can be the difference between two sets of nodes
_LEAST_NUMBER = 0.03  # against a bare number nothing is known of its noise
_SIGMAS = 4.0
_MUST_AGREE = (
    "per_device_batch_size", "max_target_length", "quantization", "dtype", "ici_tensor_parallelism",
    "gradient_accumulation_steps",
)  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """How fast a run is when nothing disturbs it, and what it is comparable with."""

    name: str
    tgs: float | None
    step_time_s: float | None
    error: float = 0.0  # relative, of the level
    kind: dict[str, str] | None = None  # model, nodes, batch: None for a bare number


@dataclass(frozen=True)
class Comparison:
    """This run's full speed against a reference."""

    reference: str
    of: str  # tgs, step time
    here: float | None
    there: float | None
    change: float | None
    slower: bool
    says: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def speed_of(name: str, record: Record, shape: Pattern) -> Speed:
    """The run's full speed: the fast level of its pattern, in tokens where the log tells them."""
    timeline, facts = record.timeline, record.facts
    tgs, fast, error = None, shape.level_s, 0.0
    if timeline is not None and (chosen := record.masks.undisturbed(timeline.seconds)).any():
        level = timeline.seconds[chosen]
        fast = fast or median(level)
        tokens = timeline.tgs * timeline.seconds  # a step's tokens do not depend on its speed
        known = tokens[np.isfinite(tokens) & ~record.masks.any]
        tgs = round(median(known) / fast, 1) if len(known) else None
        error = long_run_noise(np.log(level)).of_level(len(level))
    kind = {"model": facts.header.get("MODEL_NAME", ""), "nodes": facts.header.get("NNODES", "")}
    kind |= {k: v for k in _MUST_AGREE if (v := facts.setting(k)) is not None}
    return Speed(name, tgs, fast, error, kind)


def compare(own: Speed, other: Speed) -> Comparison:
    """Whether this run is slower than the reference by more than noise explains."""
    of = "tgs" if own.tgs is not None and other.tgs is not None else "step time"
    here, there = (own.tgs, other.tgs) if of == "tgs" else (own.step_time_s, other.step_time_s)
    if here is None or there is None or there <= 0 or here <= 0:
        return Comparison(other.name, of, here, there, None, False, f"{other.name} has no {of} to compare with")
    change = round(here / there - 1.0 if of == "tgs" else there / here - 1.0, 4)
    unit = "tokens/s/device" if of == "tgs" else "s a step"
    numbers = f"{here:g} {unit} against {there:g} ({other.name}), {100 * change:+.1f} %"
    apart = [
        f"{k} {v} against {other.kind[k]}"
        for k, v in (own.kind or {}).items()
        if other.kind is not None and k in other.kind and v and other.kind[k] and v != other.kind[k]
    ]
    if apart:
        return Comparison(other.name, of, here, there, change, False, f"{numbers}, not comparable: {'; '.join(apart)}")
    bare = other.kind is None
    error = float(np.hypot(own.error, other.error))
    slower = -change >= (_LEAST_NUMBER if bare else _LEAST_JOB) and -np.log1p(change) > _SIGMAS * error
    doubt = "" if bare or not slower else "; one other run, so the spread between runs is not known"
    return Comparison(other.name, of, here, there, change, bool(slower), numbers + doubt)


def with_reference(shape: Pattern, compared: Comparison) -> Pattern:
    """A run without a change of its own that is slower than its reference was slow from the start."""
    if not compared.slower or shape.name not in ("constant", "blip", "periodic", "too-short"):
        return shape
    return replace(
        shape, name="slow-from-start", says=f"slow from its first step: {compared.says}", change=compared.change
    )
