"""Stored samples around a moment: not smoothed, with the times at which they were taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trackwalker.telemetry.client import Labels, Telemetry
from trackwalker.telemetry.meaning import meaning_of
from trackwalker.web.data.heat import check_metric, name_of, selector
from trackwalker.web.data.pace import sample_interval

_EACH_SIDE = 8  # samples before and after
_MOST_SERIES = 24
_MOST_SAMPLES = 60  # of a series
_NEVER = frozenset({"__name__", "instance", "job", "job_id"})


def around(telemetry: Telemetry, metric: str, hosts: Sequence[str], at: float) -> dict[str, Any]:
    """Every series of these hosts within a few samples of a moment; of all hosts where none is named."""
    check_metric(telemetry, metric)
    chosen = [selector(metric, host=host) for host in hosts] or [selector(metric)]
    reach = max(_EACH_SIDE * sample_interval(telemetry, chosen[0]), 2.0)
    found = [series for each in chosen for series in telemetry.raw(each, at - reach, at + reach)]
    return {
        "metric": metric,
        # What is stored, and not its rate: of a counter the sum so far.
        "unit": meaning_of(name_of(metric)).unit,
        "at": at,
        "queries": chosen,
        "series": [_row(labels, times, values) for labels, times, values in found[:_MOST_SERIES]],
        "left_out": max(0, len(found) - _MOST_SERIES),
    }


def _row(labels: Labels, times: Any, values: Any) -> dict[str, Any]:
    name = " ".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in _NEVER)
    return {
        "name": name or labels.get("__name__", ""),
        "times": [round(float(t), 3) for t in times[:_MOST_SAMPLES]],
        "values": [float(f"{v:.8g}") if np.isfinite(v) else None for v in values[:_MOST_SAMPLES]],
    }
