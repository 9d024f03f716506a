"""The devices of one host side by side: eight GPUs, or its network ports, on the time axis of the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from trackwalker.telemetry.client import Floats, Labels, Telemetry
from trackwalker.telemetry.meaning import meaning_of
from trackwalker.web.data.heat import check_metric, is_counter, name_of, selector, smoothed, window
from trackwalker.web.data.pace import pace_of

MOST_LANES = 32
_COLUMNS = 240
_FIRST = ("gpu", "GpuIndex", "device", "interface", "rank")  # what people call a device by
_NEVER = frozenset({"__name__", "host", "instance", "job"})


def lanes(telemetry: Telemetry, host: str, metric: str, start: float | None, end: float | None) -> dict[str, Any]:
    """Every series that one host has of a metric, named by the labels in which they differ; the silent ones last."""
    check_metric(telemetry, metric)
    first, last = window(telemetry, start, end)
    counter = is_counter(metric)
    for label in ("host", "instance"):  # Ray's own metrics carry the machine in `instance`
        selected = selector(metric, **{label: host})
        pace = pace_of(telemetry, selected, last - first, _COLUMNS)
        query = smoothed(selected, counter, pace)
        matrix = telemetry.matrix(query, first, last, pace.step)
        if matrix.labels:
            break
    named = sorted(zip(_names(matrix.labels), matrix.values, strict=True), key=lambda pair: _natural(pair[0]))
    moving = [(name, row) for name, row in named if np.nan_to_num(row).any()]
    return {
        "host": host,
        "metric": metric,
        "unit": meaning_of(name_of(metric)).shown_unit,
        "queries": [query],
        "times": [round(float(t), 3) for t in matrix.times],
        "step": pace.step,
        "window": pace.window(counter),
        "lanes": [_lane(name, row, matrix.times) for name, row in moving[:MOST_LANES]],
        "zero": [name for name, row in named if np.isfinite(row).any() and not np.nan_to_num(row).any()],
        "silent": [name for name, row in named if not np.isfinite(row).any()],
        "left_out": max(0, len(moving) - MOST_LANES),
    }


def _lane(name: str, row: Floats, times: Floats) -> dict[str, Any]:
    """One device with its highest and its last value: what ended is not what it is now."""
    known = np.flatnonzero(np.isfinite(row))
    peak = int(known[np.argmax(row[known])])
    return {
        "name": name,
        "values": _plain(row),
        "peak": float(f"{row[peak]:.6g}"),
        "peak_at": round(float(times[peak]), 3),
        "low": float(f"{row[known].min():.6g}"),
        "last": float(f"{row[known[-1]]:.6g}"),
        "last_at": round(float(times[known[-1]]), 3),
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
