"""Which recorded signal explains a slow node: out of line with the other nodes, and in the direction that slows."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

Signals = Mapping[str, Mapping[str, float]]  # host -> metric -> steady mean

_SIGMAS = 4.0  # off the spread of the other nodes


class _Kind(NamedTuple):
    """A kind of signal: causes come before what follows from them."""

    part: str  # of the metric's name
    words: str
    unit: str
    slows: int  # +1: high values slow a node, -1: low ones do
    share: float  # least difference to the others, relative to them
    least: float = 0.0  # least difference in the metric's own unit


_KINDS = (
    _Kind("ecc_uncorrectable", "uncorrectable memory errors", "/h", +1, 0.0, 0.1),
    _Kind("throttle", "share of time throttled", "", +1, 0.0, 0.02),
    _Kind("temperature", "GPU temperature", "°C", +1, 0.0, 8.0),
    _Kind("clock", "GPU clock", "MHz", -1, 0.02),
    _Kind("cpu_wait", "time processes wait for a CPU", "", +1, 0.5, 0.05),
    _Kind("cpu_pressure", "CPU pressure", "%", +1, 0.5, 5.0),
    _Kind("memory_pressure", "memory pressure", "%", +1, 0.5, 5.0),
    _Kind("io_pressure", "I/O pressure", "%", +1, 0.5, 5.0),
    _Kind("ecc_correctable", "correctable memory errors", "/h", +1, 1.0, 10.0),
    _Kind("retransmits", "retransmitted packets", "/h", +1, 1.0, 100.0),
    _Kind("cpu_used", "CPU cores in use", "", -1, 0.1),
    _Kind("power", "GPU power", "W", -1, 0.03),  # last: who waits needs less power
)


class Explanation(NamedTuple):
    """The signal that is out of line."""

    metric: str
    value: float
    others: float
    words: str


def explain(host: str, signals: Signals) -> Explanation | None:
    """The first cause, in the order above, by which a node differs from the others; None where nothing is recorded."""
    mine = signals.get(host, {})
    for kind in _KINDS:
        for metric in sorted(mine):
            if kind.part not in metric:
                continue
            others = [values[metric] for other, values in signals.items() if other != host and metric in values]
            if others and _stands_out(mine[metric], others, kind):
                middle = median(others)
                unit = f" {kind.unit}" if kind.unit and not kind.unit.startswith("/") else kind.unit
                words = f"{kind.words} {mine[metric]:.4g}{unit}, others {middle:.4g}{unit}"
                return Explanation(metric, mine[metric], middle, words)
    return None


def _stands_out(value: float, others: list[float], kind: _Kind) -> bool:
    middle = median(others)
    spread = 1.4826 * median(abs(other - middle) for other in others)
    beyond = kind.slows * (value - middle)
    return beyond > max(_SIGMAS * spread, kind.share * abs(middle), kind.least)
