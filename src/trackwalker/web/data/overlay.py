"""Suspect or selected hosts against the others: their own lines over the median and the 5-95 % band of the rest."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from trackwalker.telemetry.meaning import meaning_of
from trackwalker.web.data.heat import Grid, Small, name_of

MOST_LINES = 8


def overlay(
    grid: Grid, chosen: Sequence[str], suspects: Collection[str] = (), machines: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Lines of chosen hosts and the band of the others; only whom the verdict names is a suspect, however chosen."""
    rows = {host: i for i, host in enumerate(grid.hosts)}
    # A lane has what its machine has, where nothing of its own was recorded.
    lanes = {lane: rows[node] for lane, node in (machines or {}).items() if node in rows and lane not in rows}
    where = {**rows, **lanes}
    shown = [host for host in chosen if host in where][:MOST_LINES]
    taken = {where[host] for host in (*chosen, *suspects) if host in where}
    others = [i for i in range(len(grid.hosts)) if i not in taken]
    low, middle, high = _band(grid.values[others])
    return {
        "metric": grid.metric,
        "how": grid.how,
        "queries": list(grid.queries),
        "times": [round(float(t), 3) for t in grid.times],
        "unit": meaning_of(name_of(grid.metric)).shown_unit,
        "step": grid.step,
        "window": grid.window,
        "lines": [
            {"host": host, "suspect": host in suspects, "values": _plain(grid.values[where[host]])} for host in shown
        ],
        "absent": [host for host in chosen if host not in where][:MOST_LINES],
        "left_out": max(0, sum(host in where for host in chosen) - MOST_LINES),
        "control": {"hosts": len(others), "low": _plain(low), "median": _plain(middle), "high": _plain(high)},
    }


def _band(values: Small) -> tuple[Small, Small, Small]:
    if not len(values):
        empty = np.full(values.shape[1], np.nan, np.float32)
        return empty, empty, empty
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a time at which nobody reported
        low, middle, high = np.nanpercentile(values, [5, 50, 95], axis=0)
    return low, middle, high


def _plain(values: Small) -> list[float | None]:
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]
