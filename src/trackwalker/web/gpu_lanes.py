"""The devices of one host side by side: eight GPUs, or its network ports, on the time axis of the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from trackwalker.telemetry.client import Labels, Telemetry
from trackwalker.web.heat import check_metric, is_counter, selector, smoothed, window

MOST_LANES = 32
_COLUMNS = 240
_FIRST = ("gpu", "GpuIndex", "device", "interface", "rank")  # what people call a device by
_NEVER = frozenset({"__name__", "host", "instance", "job"})


def lanes(telemetry: Telemetry, host: str, metric: str, start: float | None, end: float | None) -> dict[str, Any]:
    """Every series that one host has of a metric, named by the labels in which they differ."""
    check_metric(telemetry, metric)
    first, last = window(telemetry, start, end)
    step = max(1.0, (last - first) / _COLUMNS)
    query = smoothed(selector(metric, host=host), is_counter(metric), step)
    matrix = telemetry.matrix(query, first, last, step)
    if not matrix.labels:  # Ray's own metrics carry the machine in `instance`
        query = smoothed(selector(metric, instance=host), is_counter(metric), step)
        matrix = telemetry.matrix(query, first, last, step)
    named = sorted(zip(_names(matrix.labels), matrix.values, strict=True), key=lambda pair: _natural(pair[0]))
    return {
        "host": host,
        "metric": metric,
        "queries": [query],
        "times": [round(float(t), 3) for t in matrix.times],
        "step": step,
        "lanes": [{"name": name, "values": _plain(row)} for name, row in named[:MOST_LANES]],
        "left_out": max(0, len(named) - MOST_LANES),
    }


def _names(labels: list[Labels]) -> list[str]:
    keys = {k for each in labels for k in each} - _NEVER
    differing = [k for k in keys if len({each.get(k) for each in labels}) > 1]
    order = sorted(differing, key=lambda k: (_FIRST.index(k) if k in _FIRST else len(_FIRST), k))
    return [", ".join(f"{k} {each[k]}" for k in order if k in each) or "the host" for each in labels]


def _natural(name: str) -> list[tuple[int, str]]:
    """GPU 10 after GPU 9."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in name.replace(",", " ").split()]


def _plain(row: Any) -> list[float | None]:
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in row.tolist()]
