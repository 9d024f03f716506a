"""Prometheus text format: families of samples, written without any library."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    """The classic text format (0.0.4) of all families that have samples; times in milliseconds."""
    lines = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_help(family)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [_sample(family.name, s, lambda t: str(round(t * 1000))) for s in family.samples]
    return "\n".join(lines) + "\n"


def render_openmetrics(families: list[Family]) -> str:
    """OpenMetrics 1.0: a counter's family is named without _total, times are in seconds, the end is marked."""
    lines = []
    for family in families:
        if family.samples:
            name, kind = family.name, family.kind
            if kind == "counter":  # upstream has counters of other names: these can only be of unknown type
                name, kind = (name[: -len("_total")], kind) if name.endswith("_total") else (name, "unknown")
            lines.append(f"# HELP {name} {_help(family)}")
            lines.append(f"# TYPE {name} {kind}")
            lines += [_sample(family.name, s, lambda t: f"{t:.3f}") for s in family.samples]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _help(family: Family) -> str:
    return family.help.replace("\\", "\\\\").replace("\n", "\\n")


def _sample(name: str, sample: tuple[dict[str, str], float, float | None], stamp: Callable[[float], str]) -> str:
    labels, value, time = sample
    text = ",".join(f'{k}="{escape(v)}"' for k, v in labels.items())
    return f"{name}{{{text}}} {number(value)}" + (f" {stamp(time)}" if time is not None else "")


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
