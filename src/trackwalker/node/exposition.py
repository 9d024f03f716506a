"""Prometheus text format: families of samples, written without any library."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Family:
    """One metric: its name, type, help line and samples."""

    name: str
    kind: str  # "gauge" or "counter"
    help: str
    samples: list[tuple[dict[str, str], float, float | None]] = field(default_factory=list)

    def add(self, value: float | None, time: float | None = None, **labels: str) -> None:
        """Add a sample; None (a failed read) adds nothing, because absent is not zero."""
        if value is not None:
            self.samples.append((labels, float(value), time))


def render(families: list[Family]) -> str:
    """The exposition text of all families that have samples."""
    lines = []
    for family in families:
        if not family.samples:
            continue
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value, time in family.samples:
            text = ",".join(f'{k}="{escape(v)}"' for k, v in labels.items())
            stamp = f" {round(time * 1000)}" if time is not None else ""
            lines.append(f"{family.name}{{{text}}} {number(value)}{stamp}")
    return "\n".join(lines) + "\n"


def escape(value: str) -> str:
    """A label value as the format wants it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """A sample value: integers without a fraction, NaN and infinities by name."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
