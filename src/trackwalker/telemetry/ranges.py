"""Ranges in a query that are too short for the recording: a rate needs two samples, and four to be believed."""

from __future__ import annotations

import math
import re

from trackwalker.telemetry.client import Telemetry
from trackwalker.telemetry.coverage import scrape_interval
from trackwalker.telemetry.recorded import metrics_in

_SAMPLES = 4  # two make a rate; one lost scrape must not take it away, and the window's edges fall anywhere
_CHANGES = re.compile(r"\b(rate|irate|increase|delta|idelta|deriv|changes|resets)\s*\(")
_RANGE = re.compile(r"\[((?:\d+(?:\.\d+)?(?:ms|[smhdwy]))+)(?::[^\]]*)?\]")
_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}


def seconds_of(duration: str) -> float:
    """A duration as PromQL writes it."""
    return sum(float(n) * _UNIT[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdwy])", duration))


def too_short(telemetry: Telemetry, promql: str) -> list[str]:
    """One line for each range of a rate or the like that holds too few samples of what was recorded."""
    if _CHANGES.search(promql) is None:
        return []
    recorded = [name for name in metrics_in(promql) if name in telemetry.metrics()]
    ranges = {text: seconds_of(text) for text in _RANGE.findall(promql)}
    if not recorded or not ranges:
        return []
    interval = scrape_interval(telemetry, recorded[0])
    least = math.ceil(_SAMPLES * round(interval, 3))
    return [
        f"[{text}] holds {seconds / interval:.2g} samples of a scrape every {interval:.3g} s: use at least [{least}s]"
        for text, seconds in ranges.items()
        if interval > 0 and seconds < _SAMPLES * interval * 0.99
    ]
