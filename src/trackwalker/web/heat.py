"""Any recorded metric as hosts x time, asked of the server in aggregated form: thousands of hosts stay small here."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from trackwalker.errors import UsageError
from trackwalker.telemetry.client import Floats, Telemetry, host_of

Small = npt.NDArray[np.float32]
How = Literal["auto", "sum", "mean", "max", "min"]

MOST_COLUMNS = 400
_MOST_CELLS = 2_000_000  # hosts x columns: what one answer may hold in memory
_LEAST_WINDOW_S = 60  # a rate needs a few scrapes
_RECENT_S = 900.0
_COUNTER = re.compile(r"(_total|_total_us|_count|_sum|_bucket)$")
_PLAIN_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MOST_SIGMAS = 1000.0


@dataclass(frozen=True)
class Grid:
    """One metric by host and time; NaN where a host has nothing."""

    metric: str
    how: How
    queries: tuple[str, ...]  # what gives the numbers back
    hosts: tuple[str, ...]
    times: Floats
    values: Small
    usual: Small  # what each cell is measured against: the hosts' median at that time
    deviation: Small  # in units of the hosts' own spread
    step: float


def is_counter(metric: str) -> bool:
    """Whether a metric only grows, so that its rate is what one looks at."""
    return bool(_COUNTER.search(metric))


def selector(metric: str, **labels: str) -> str:
    """A metric in PromQL, whatever its name and its labels' values hold."""
    matchers = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items()]
    if not _PLAIN_NAME.fullmatch(metric):
        matchers.insert(0, f"__name__={json.dumps(metric, ensure_ascii=False)}")
        metric = ""
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def smoothed(selected: str, counter: bool, step: float) -> str:
    """A selector over the width of one column: the rate of a counter, the mean of a gauge."""
    window = f"[{max(_LEAST_WINDOW_S, round(step))}s]"
    return f"rate({selected}{window})" if counter else f"avg_over_time({selected}{window})"


def check_metric(telemetry: Telemetry, metric: str) -> None:
    """Refuse a metric that the job does not have."""
    if metric not in telemetry.metrics():
        raise UsageError(f"{metric[:80] or 'nothing'} was not recorded in this job: choose one of the list")


def window(telemetry: Telemetry, start: float | None, end: float | None) -> tuple[float, float]:
    """What to look at: the asked span, as far as anything was recorded."""
    low, high = telemetry.range()
    first = low if start is None else max(start, low)
    last = high if end is None else min(end, high)
    if not first < last:
        raise UsageError("nothing was recorded in that time: reset the zoom")
    return first, last


def ask(telemetry: Telemetry, metric: str, how: str, start: float | None, end: float | None) -> Grid:
    """The metric of every host over a span, at most 400 columns and two million cells."""
    check_metric(telemetry, metric)
    if how not in get_args(How):
        raise UsageError(f"'{how[:40]}' is no way to join the devices of a host: {', '.join(get_args(How))}")
    first, last = window(telemetry, start, end)
    series, hosts = _counts(telemetry, metric, last, last - first)
    columns = max(20, min(MOST_COLUMNS, _MOST_CELLS // max(hosts, 1)))
    step = max(1.0, (last - first) / columns)
    counter = is_counter(metric)
    whole = smoothed(selector(metric), counter, step)
    if how != "auto":
        sides: tuple[str, ...] = ("avg" if how == "mean" else how,)
    elif counter:
        sides = ("sum",)
    else:  # one of eight GPUs may be too high or too low: whichever is further from the other hosts is shown
        sides = ("max", "min") if series > hosts else ("max",)
    made = [_side(telemetry, f"{side} by (host, instance) ({whole})", side, first, last, step) for side in sides]
    names = tuple(sorted({host for rows, _ in made for host in rows}))
    shown = [_measure(_matrix(names, rows, len(times))) for rows, times in made]
    values, usual, deviation = shown[0]
    for other in shown[1:]:
        further = np.nan_to_num(np.abs(other[2]), nan=-1.0) > np.nan_to_num(np.abs(deviation), nan=-1.0)
        values, usual, deviation = (
            np.where(further, b, a) for a, b in zip((values, usual, deviation), other, strict=True)
        )
    queries = tuple(f"{side} by (host, instance) ({whole})" for side in sides)
    return Grid(metric, how, queries, names, made[0][1], values, usual, deviation, step)  # type: ignore[arg-type]


def _counts(telemetry: Telemetry, metric: str, at: float, span: float) -> tuple[int, int]:
    """How many series there are, and of how many hosts; the last minutes tell, unless they are silent."""
    for window in (min(span, _RECENT_S), span):
        there = f"last_over_time({selector(metric)}[{max(1, round(window))}s])"
        if found := telemetry.instant(f"count by (host, instance) ({there})", at):
            return int(sum(s.value for s in found)), len({host_of(s.labels) for s in found})
    return 0, 0


def _side(
    telemetry: Telemetry, query: str, side: str, first: float, last: float, step: float
) -> tuple[dict[str, Floats], Floats]:
    """One row for each host; a host that two exporters speak of is joined as its devices are."""
    matrix = telemetry.matrix(query, first, last, step)
    join = {"max": np.fmax, "min": np.fmin, "sum": np.add, "avg": np.fmax}[side]
    rows: dict[str, Floats] = {}
    for labels, row in zip(matrix.labels, matrix.values, strict=True):
        host = host_of(labels) or "(no host)"
        row = np.where(np.isfinite(row), row, np.nan)
        rows[host] = join(rows[host], row) if host in rows else row
    return rows, matrix.times


def _matrix(names: tuple[str, ...], rows: dict[str, Floats], columns: int) -> Small:
    empty = np.full(columns, np.nan)
    return np.array([rows.get(name, empty) for name in names], dtype=np.float32).reshape(len(names), columns)


def _measure(values: Small) -> tuple[Small, Small, Small]:
    """The values, the hosts' median at each time, and how far each is from it in units of the usual spread."""
    if not values.size:
        return values, values, values
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # a column in which nobody reported
        median = np.nanmedian(values, axis=0, keepdims=True)
        apart = values - median
        spread = 1.4826 * float(np.nan_to_num(np.nanmedian(np.abs(apart))))
        # Counters of trouble are zero nearly everywhere, and a setting is the same on all hosts: there the smallest
        # difference worth a colour is a hundredth of the largest one, or a thousandth of the value itself.
        largest = float(np.nan_to_num(np.nanmax(np.abs(apart), initial=0.0)))
        level = float(np.nan_to_num(np.nanmedian(np.abs(median))))
        spread = max(spread, largest / 100.0, level / 1000.0, 1e-12)
        deviation = np.clip(apart / spread, -_MOST_SIGMAS, _MOST_SIGMAS)
    return values, np.broadcast_to(median, values.shape), deviation.astype(np.float32)
