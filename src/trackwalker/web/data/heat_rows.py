"""Hosts in the order of how much they differ; the many alike share rows, and an outlier never vanishes in one."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trackwalker.report.story.heat import full_colour, furthest, scores
from trackwalker.stats.medians import known_row_medians
from trackwalker.telemetry.meaning import meaning_of
from trackwalker.web.data.heat import Grid, Small, name_of

MOST_ROWS = 200
TOLD = 20  # hosts in the table behind the map
_TOGETHER_SHARE = 1 / 60  # of what all have: the noise of all together is worth no colour
_ABSENT16, _ABSENT8 = 65535, -128


@dataclass(frozen=True)
class Row:
    """One row of the map: one host, or several whose furthest cell is shown; `ranks` are places in the order."""

    hosts: tuple[str, ...]
    ranks: tuple[int, int]
    accused: bool
    score: float


@dataclass(frozen=True)
class Order:
    """The hosts of a grid, those that differ most first."""

    at: npt.NDArray[np.int64]
    score: npt.NDArray[np.float64]  # by row of the grid


def rank(grid: Grid, accused: Collection[str] = ()) -> Order:
    """Sort by the worst stretch of each host; among equals the accused and then the name decide."""
    if not grid.values.size:
        return Order(np.empty(0, np.int64), np.empty(0))
    score = scores(grid.deviation)
    keys = [(-round(float(score[i]), 2), host not in accused, host) for i, host in enumerate(grid.hosts)]
    return Order(np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64), score)


def group(grid: Grid, order: Order, accused: Collection[str] = (), most: int = MOST_ROWS) -> list[Row]:
    """At most `most` rows: the most unlike half one by one, the rest shared; an accused host is always alone."""
    count = len(order.at)
    alone = count if count <= most else most // 2
    rows = [_row(grid, order, accused, place, place) for place in range(alone)]
    rest = [place for place in range(alone, count) if grid.hosts[order.at[place]] not in accused]
    extra = [place for place in range(alone, count) if grid.hosts[order.at[place]] in accused][: most // 4]
    rows += [_row(grid, order, accused, place, place) for place in extra]
    size = -(-len(rest) // max(1, most - len(rows)))
    for at in range(0, len(rest), size or 1):
        part = rest[at : at + size]
        hosts = tuple(grid.hosts[order.at[place]] for place in part)
        rows.append(Row(hosts, (part[0], part[-1]), False, float(order.score[order.at[part[0]]])))
    return rows


def members(grid: Grid, order: Order, accused: Collection[str], first: int, last: int) -> list[Row]:
    """The rows of a group, one for each host."""
    last = min(last, len(order.at) - 1, first + MOST_ROWS - 1)
    return [_row(grid, order, accused, place, place) for place in range(max(0, first), last + 1)]


def document(grid: Grid, order: Order, rows: list[Row], busy: tuple[float, float] | None = None) -> dict[str, Any]:
    """The map for the browser: numbers as base64 of little-endian integers, a thirtieth of the same as text.

    `busy` is the time in which steps were done: what all hosts together usually have is measured there.
    """
    where = {host: i for i, host in enumerate(grid.hosts)}
    columns = len(grid.times)
    values = np.full((len(rows), columns), np.nan, np.float32)
    apart = np.full((len(rows), columns), np.nan, np.float32)
    for i, row in enumerate(rows):
        mine = [where[host] for host in row.hosts]
        picked = (np.array(mine)[furthest(grid.deviation[mine])], np.arange(columns))
        values[i], apart[i] = grid.values[picked], grid.deviation[picked]
    lo, hi = _bounds(values)
    full = full_colour(grid.noise_floor)
    return {
        "metric": grid.metric,
        "how": grid.how,
        "queries": list(grid.queries),
        "times": [round(float(t), 3) for t in grid.times],
        "step": grid.step,
        "hosts": len(grid.hosts),
        "rows": [
            {
                "hosts": list(r.hosts[:40]),
                "count": len(r.hosts),
                "ranks": r.ranks,
                "accused": r.accused,
                "score": _short(r.score),
            }
            for r in rows
        ],
        "unit": meaning_of(name_of(grid.metric)).shown_unit,
        "window": grid.window,
        "lo": lo,
        "hi": hi,
        "spread": _short(grid.spread),
        "floor": round(grid.noise_floor, 2),
        "full": round(full, 2),
        "values": _packed(values, lo, hi),
        "deviation": _packed_deviation(apart, full),
        "together": together(grid, busy, full),
        "outliers": outliers(grid, order),
    }


def together(grid: Grid, busy: tuple[float, float] | None, full: float) -> dict[str, Any] | None:
    """All hosts as one row, against what they had while steps were done: a collapse of all leaves no host unlike."""
    if not grid.values.size:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column in which nobody reported
        course = known_row_medians(grid.values.T)
        inside = (grid.times >= busy[0]) & (grid.times <= busy[1]) if busy else np.ones(len(course), np.bool_)
        part = course[inside] if np.isfinite(course[inside]).any() else course
        usual = float(np.nan_to_num(np.nanmedian(part)))
        noise = 1.4826 * float(np.nan_to_num(np.nanmedian(np.abs(part - usual))))
    # Colours begin where the map's do, so the unit is chosen that they begin at four times the noise.
    spread = 4.0 * max(noise, abs(usual) * _TOGETHER_SHARE) / grid.noise_floor or grid.spread
    return {
        "usual": _short(usual),
        "spread": _short(spread),
        "values": [_short(float(v)) if np.isfinite(v) else None for v in course],
        "deviation": _packed_deviation(((course - usual) / spread).astype(np.float32), full),
    }


def outliers(grid: Grid, order: Order, most: int = TOLD) -> list[dict[str, Any]]:
    """The hosts that differ most, in numbers: where they are furthest, what the others had then, for how long."""
    out = []
    for i in order.at[:most]:
        size = np.nan_to_num(np.abs(grid.deviation[i]), nan=-1.0)
        if size.size == 0 or size.max() < 0:
            continue
        at = int(size.argmax())
        out.append(
            {
                "host": grid.hosts[i],
                "score": _short(float(order.score[i])),
                "time": round(float(grid.times[at]), 3),
                "value": _short(float(grid.values[i, at])),
                "usual": _short(float(grid.usual[i, at])),
                "share": _short(float((size > grid.noise_floor).mean())),
            }
        )
    return out


def _row(grid: Grid, order: Order, accused: Collection[str], first: int, last: int) -> Row:
    host = grid.hosts[order.at[first]]
    return Row((host,), (first, last), host in accused, float(order.score[order.at[first]]))


def _bounds(values: Small) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)


def _packed(values: Small, lo: float, hi: float) -> str:
    scaled = np.rint((values - lo) / ((hi - lo) or 1.0) * (_ABSENT16 - 1))
    whole = np.where(np.isfinite(scaled), scaled, _ABSENT16).astype("<u2")
    return base64.b64encode(whole.tobytes()).decode()


def _packed_deviation(apart: Small, full: float) -> str:
    scaled = np.rint(np.clip(apart / full, -1.0, 1.0) * 127)
    whole = np.where(np.isfinite(scaled), scaled, _ABSENT8).astype(np.int8)
    return base64.b64encode(whole.tobytes()).decode()


def _short(value: float) -> float:
    return float(f"{value:.5g}")
