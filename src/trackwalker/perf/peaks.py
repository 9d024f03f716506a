"""Which accelerator a run used, and what its peak is: told by the user, the trace or the log, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from trackwalker.job import gpus
from trackwalker.perf.model import Device

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
