"""Dense peak of GPUs in TFLOP/s, as their makers publish it: what model FLOP/s utilisation is measured against."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping
from typing import Any

OVERRIDE = "HARDWARE_PEAK_TFLOPS"
# name, as it is in the device's own -> bfloat16, float8 (0: none)
PEAKS = {
    "MI355X": (2500, 5000),
    "MI350X": (2250, 4500),
    "MI325X": (1307, 2614),
    "MI300X": (1307, 2614),
    "MI300A": (981, 1963),
    "MI250X": (383, 0),
    "MI250": (362, 0),
    "MI210": (181, 0),
    "B300": (2250, 4500),
    "B200": (2250, 4500),
    "H200": (989, 1979),
    "H100": (989, 1979),
    "H800": (989, 1979),
    "L40S": (362, 733),
    "A100": (312, 0),
    "A800": (312, 0),
    "A10G": (70, 0),
}
_ARCHITECTURES = {"gfx950": "MI355X", "gfx942": "MI300X", "gfx941": "MI300A", "gfx940": "MI300A", "gfx90a": "MI250X"}
_DIES = ("MI250X", "MI250")  # two devices on one card: each has half of the card's peak


def peak_tflops(device: str, quantization: str, env: Mapping[str, str] = os.environ) -> float | None:
    """The peak of a device with the matrix products' type; None where it is not known. The user's own number wins."""
    own = _number(env.get(OVERRIDE, ""))
    if own is not None:
        return own
    text = device.upper()
    name = next((gpu for gpu in sorted(PEAKS, key=len, reverse=True) if gpu in text), None)
    name = name or next((gpu for arch, gpu in _ARCHITECTURES.items() if arch in device.lower()), None)
    if name is None:
        return None
    half, eighth = PEAKS[name]
    peak = eighth if eighth and "fp8" in quantization.lower() else half
    return peak / 2 if name in _DIES else float(peak)


def local_peak(config: Any) -> float | None:
    """The peak of this process's first device for a MaxText config; JAX must be up."""
    jax: Any = importlib.import_module("jax")
    device = jax.local_devices()[0]
    return peak_tflops(str(device.device_kind), str(getattr(config, "quantization", "") or ""))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None
