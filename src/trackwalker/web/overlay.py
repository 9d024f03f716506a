"""Suspect hosts against the others: their own lines over the median and the 5-95 % band of everybody else."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from trackwalker.web.heat import Grid, Small

MOST_LINES = 8


def overlay(grid: Grid, accused: Sequence[str]) -> dict[str, Any]:
    """Lines of the accused and the band of the control group; hosts without this metric are named."""
    where = {host: i for i, host in enumerate(grid.hosts)}
    shown = [host for host in accused if host in where][:MOST_LINES]
    others = [i for host, i in where.items() if host not in set(accused)]
    low, middle, high = _band(grid.values[others])
    return {
        "metric": grid.metric,
        "how": grid.how,
        "queries": list(grid.queries),
        "times": [round(float(t), 3) for t in grid.times],
        "step": grid.step,
        "lines": [{"host": host, "values": _plain(grid.values[where[host]])} for host in shown],
        "absent": [host for host in accused if host not in where][:MOST_LINES],
        "left_out": max(0, sum(host in where for host in accused) - MOST_LINES),
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
