"""MFU and HFU: ideal time over step time, with the trainer's own figures beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from trackwalker.job import gpus
from trackwalker.job.dialects import read_step
from trackwalker.logs.facts import LogFacts
from trackwalker.perf.analysis.result import FlopsPart, Utilisation
from trackwalker.perf.formats.model import Device
from trackwalker.perf.throughput.flops import FORMULA, Flops
from trackwalker.perf.throughput.settings import Settings

_SAME = 0.02  # the trainer prints few digits
_LAST = 0.0006  # half of the last printed digit, and a little
_TELLING = 0.25  # a figure rounding may have moved further than this is no figure to compare with


# Which accelerator a run used, and what its peak is: told by the user, the trace or the log, never guessed.
OVERRIDE = "HARDWARE_PEAK_TFLOPS"  # upstream's variable: the user's own number wins
_GIB = 2**30


class Marks(BaseModel):
    """How a profile shows a kind of device."""

    model_config = ConfigDict(extra="forbid")

    capability: str
    cores: int
    memory_gib: tuple[float, float] | None = None


class Peak(BaseModel):
    """One kind of device, as JAX counts devices."""

    vendor: str
    tflops: dict[str, float]
    hbm_gb_s: float
    link_gb_s: float
    source: str
    trace: Marks | None = None


@dataclass(frozen=True)
class Known:
    """The peak to reckon with: by type, and who says so."""

    device: str | None
    tflops: dict[str, float]
    source: str
    hbm_gb_s: float | None = None
    link_gb_s: float | None = None


class AnyType(dict[str, float]):
    """One number whatever the type: what a user states is meant for the run as it is."""

    def __missing__(self, kind: str) -> float:
        return self["any"]

    def get(self, kind: str, default: Any = None) -> Any:
        """The one number."""
        return self["any"]


@cache
def peaks() -> dict[str, Peak]:
    """The table."""
    return {name: Peak(**row) for name, row in gpus.gpus().items()}


def by_name(text: str) -> Known | None:
    """The device whose name is in a text; of several the longest name."""
    name = gpus.by_name(text)
    return _known(name, f"{gpus.NAME}, by the name '{text}'") if name else None


def by_trace(device: Device) -> Known | None:
    """The device that a profile's plane describes."""
    facts = device.facts
    for key in ("device_type_string", "device_type", "device_name", "model"):
        if key in facts and (found := by_name(str(facts[key]))):
            return found
    capability = f"{facts.get('compute_cap_major', '')}.{facts.get('compute_cap_minor', '')}"
    memory = float(facts.get("memory_size", 0) or 0) / _GIB
    for name, peak in peaks().items():
        marks = peak.trace
        if marks is None or peak.vendor != device.vendor.lower() or marks.capability != capability:
            continue
        low, high = marks.memory_gib or (0.0, float("inf"))
        if int(facts.get("core_count", 0) or 0) == marks.cores and low <= memory <= high:
            return _known(name, f"{gpus.NAME}, by the trace ({marks.cores} cores, capability {capability})")
    return None


def stated(tflops: float, who: str) -> Known:
    """A number somebody stated, whatever the type of the products."""
    return Known(None, AnyType(any=tflops), who)


def from_environment(env: Mapping[str, str]) -> Known | None:
    """The user's own number, as upstream has it."""
    try:
        value = float(env.get(OVERRIDE, ""))
    except ValueError:
        return None
    return stated(value, f"{OVERRIDE} of the run") if 0 < value < float("inf") else None


def _known(name: str, source: str) -> Known:
    peak = peaks()[name]
    # JAX multiplies float32 as tf32 where the device has it, unless a higher precision is asked for.
    fast = {"float32": peak.tflops["tf32"]} if "tf32" in peak.tflops else {}
    return Known(name, {**peak.tflops, **fast}, source, peak.hbm_gb_s, peak.link_gb_s)


@dataclass(frozen=True)
class Logged:
    """What the trainer says about its FLOPs; None where it does not."""

    tflops: float | None = None  # of one device in one step
    digits: float = 0.0  # relative: how far rounding may have moved it
    attention_share: float | None = None
    mfu: float | None = None
    peak: float | None = None


def logged_flops(facts: LogFacts, tokens: float | None) -> Logged:
    """The trainer's own count, as its log has it."""
    lines = [
        [t.seconds, t.tflops, t.mfu, t.tgs]
        for raw in facts.steps.front
        if (t := read_step(raw.decode("utf-8", "replace"))) is not None and math.isfinite(t.tflops)
    ]
    said, share, told_peak = facts.step_tflops, facts.attention_share, facts.peak_tflops
    rows = np.array(lines, float).reshape(-1, 4)
    mfu = float(np.nanmedian(rows[:, 2])) if np.isfinite(rows[:, 2]).any() else None
    if mfu and told_peak is None:
        told_peak = float(np.nanmedian(rows[:, 1] / rows[:, 2]))
    if said:
        return Logged(said, 0.005 / said, share, mfu, told_peak)
    value, digits = _by_rates(rows, tokens)
    return Logged(value, digits, share, mfu, told_peak)


def _by_rates(rows: np.ndarray, tokens: float | None) -> tuple[float | None, float]:
    """TFLOPs of one device in one step from the printed rates, and how far rounding may have moved it.

    Every line bounds the figure by its last printed digit, a rate of 0.000 from above; all of them together bound it
    better than any one does.
    """
    if not (rows[:, 1] > 0).any():
        return None, 1.0 if len(rows) else 0.0  # a slow machine: every rate is rounded to nothing
    # Tokens/s has more digits than seconds.
    by_tokens = tokens is not None and np.isfinite(rows[:, 3]).all() and (rows[:, 3] > 0).all()
    seconds = tokens / rows[:, 3] if by_tokens and tokens else rows[:, 0]
    spare = 0.0 if by_tokens else _LAST
    low = float(np.max((rows[:, 1] - _LAST) * np.maximum(seconds - spare, 0.0)))
    high = float(np.min((rows[:, 1] + _LAST) * (seconds + spare)))
    if 0 < low <= high:
        return (low + high) / 2, (high - low) / (low + high)
    fastest = rows[:, 1] >= rows[:, 1].max() / 2  # the lines do not fit one figure: those with the most digits
    digits = _LAST / rows[fastest, 1] + spare / np.maximum(seconds[fastest], 1e-9)
    return float(np.median(rows[fastest, 1] * seconds[fastest])), float(digits.max())


def flops_part(flops: Flops, logged: Logged) -> FlopsPart:
    """Our count, and how the trainer's compares: with the masked half, without it, or neither."""
    agrees = ""
    if logged.digits > _TELLING:
        agrees = "the trainer prints too few digits to compare"
    elif logged.tflops:
        room = _SAME + logged.digits
        if abs(logged.tflops * 1e12 / flops.total - 1.0) <= room:
            agrees = "the trainer counts the same"
        elif abs(logged.tflops * 1e12 / flops.with_masked_half - 1.0) <= room:
            agrees = "the trainer counts the masked half of attention, too (MaxText before mid-2025)"
        else:
            apart = logged.tflops * 1e12 / flops.total - 1.0
            agrees = f"the trainer counts {100 * apart:+.0f} %: its own formula, or another architecture"
    return FlopsPart(
        formula=FORMULA,
        tflops=flops.total / 1e12,
        parts={name: count / 1e12 for name, count in flops.parts.items()},
        attention_share=flops.parts["attention"] / flops.total,
        logged_tflops=logged.tflops,
        agrees=agrees,
        notes=flops.notes,
    )


def find_peak(
    settings: Settings, logged: Logged, devices: Iterable[Device], gpu: str | None, peak: float | None
) -> Known | None:
    """Whose peak to measure against; the user first, then the run, the trace, the log. None: no percentage."""
    if peak is not None:
        return stated(peak, "as given with --peak")
    if gpu is not None:
        return by_name(gpu)
    if (known := from_environment(settings.env)) is not None:
        return known
    for device in devices:
        if (known := by_trace(device)) is not None:
            return known
    try:
        own = float(settings.told.get("hardware_peak_tflops") or 0)
    except (TypeError, ValueError):
        own = 0.0
    if own > 0:
        return stated(own, "hardware_peak_tflops of the config")
    return stated(logged.peak, "the peak that the trainer's own MFU was computed with") if logged.peak else None


def utilisation(
    flops: Flops | None, executed: dict[str, float] | None, known: Known, step_s: float, logged: Logged, dtype: str
) -> Utilisation:
    """Ideal time over step time, of the model's FLOPs and of those that were executed (FLOPs by type).

    Where the architecture is not known, the trainer's own count has to do, and it is said so.
    """
    out = Utilisation(step_s=step_s, device=known.device, peak_from=known.source, logged_mfu=logged.mfu)
    if flops is None and logged.tflops and known.tflops.get(dtype):
        out.peak_tflops = {dtype: known.tflops[dtype]}
        out.ideal_s = logged.tflops / known.tflops[dtype]
        out.mfu = out.ideal_s / step_s
        out.peak_from += "; FLOPs as the trainer counts them"
    if flops is not None:
        kinds = sorted(set(flops.dtypes.values()))
        out.peak_tflops = {kind: peak for kind in kinds if (peak := known.tflops.get(kind)) is not None}
        out.ideal_s = flops.ideal_seconds(known.tflops)
        out.mfu = out.ideal_s / step_s if out.ideal_s is not None else None
    if executed:
        out.executed_tflops = sum(executed.values()) / 1e12
        ideal = [count / (peak * 1e12) for kind, count in executed.items() if (peak := known.tflops.get(kind))]
        out.hfu = sum(ideal) / step_s if len(ideal) == len(executed) else None
    return out
