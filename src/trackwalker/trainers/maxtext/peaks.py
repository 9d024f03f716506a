"""Dense peak of GPUs in TFLOP/s, as their makers publish it: what model FLOP/s utilisation is measured against."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping
from typing import Any

from trackwalker.job.gpus import by_name, gpus

OVERRIDE = "HARDWARE_PEAK_TFLOPS"


def peak_tflops(device: str, quantization: str, env: Mapping[str, str] = os.environ) -> float | None:
    """The peak of a device with the matrix products' type; None where it is not known. The user's own number wins."""
    own = _number(env.get(OVERRIDE, ""))
    if own is not None:
        return own
    name = by_name(device)
    if name is None:
        return None
    peaks = gpus()[name]["tflops"]
    return float(peaks["float8"] if "float8" in peaks and "fp8" in quantization.lower() else peaks["bfloat16"])


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
