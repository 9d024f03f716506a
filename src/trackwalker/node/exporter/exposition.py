"""Prometheus text format: families of samples, written without any library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_EXACT = 10**15
# Label sets hardly change from scrape to scrape, and escaping them again is half the work of a scrape.
_WRITTEN: dict[tuple[tuple[str, str], ...], str] = {}
_MOST_WRITTEN = 10000


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
            lines += _samples(family, lambda t: str(round(t * 1000)))
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
            lines += _samples(family, lambda t: f"{t:.3f}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def _help(family: Family) -> str:
    return family.help.replace("\\", "\\\\").replace("\n", "\\n")


def _samples(family: Family, stamp: Callable[[float], str]) -> Iterator[str]:
    name = family.name
    for labels, value, time in family.samples:
        key = tuple(labels.items())
        text = _WRITTEN.get(key) or _write_labels(key)
        yield f"{name}{text} {number(value)}" if time is None else f"{name}{text} {number(value)} {stamp(time)}"


def _write_labels(key: tuple[tuple[str, str], ...]) -> str:
    if len(_WRITTEN) >= _MOST_WRITTEN:
        _WRITTEN.clear()
    text = _WRITTEN[key] = "{" + ",".join(f'{k}="{escape(v)}"' for k, v in key) + "}"
    return text


def escape(value: str) -> str:
    """A label value as the format wants it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """A sample value: integers without a fraction, NaN and infinities by name."""
    try:
        whole = int(value)
    except ValueError:
        return "NaN"
    except OverflowError:
        return "+Inf" if value > 0 else "-Inf"
    return str(whole) if whole == value and -_EXACT < whole < _EXACT else repr(value)
