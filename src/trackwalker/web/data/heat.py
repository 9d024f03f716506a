"""Any recorded metric as hosts x time, asked of the server in aggregated form: thousands of hosts stay small here."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from trackwalker.errors import UsageError
from trackwalker.report.story.heat import measure, noise_floor, spread_of
from trackwalker.telemetry.client import Floats, Telemetry, host_of
from trackwalker.telemetry.meaning import meaning_of
from trackwalker.web.data.pace import Pace, pace_of

Small = npt.NDArray[np.float32]
How = Literal["auto", "sum", "mean", "max", "min"]

MOST_COLUMNS = 400
_LEAST_COLUMNS = 100
_MOST_CELLS = 1_600_000  # series x columns: what is worked out in half a second; a closer look is as fine again
_RECENT_S = 900.0
_COUNTER = re.compile(r"(_total|_total_us|_count|_sum|_bucket)$")
# Plain matchers only: what a visitor writes there must not become more of a query.
_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*(?:=|!=|=~|!~)"[^"\\\\{}]{0,80}"'
_NARROWED = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)\{{({_MATCHER}(?:,{_MATCHER}){{0,5}})\}}")
_PLAIN_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


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
    window: float  # seconds that one column looks back over
    spread: float = 1.0  # what one unit of deviation is, in the metric's own unit

    @cached_property
    def noise_floor(self) -> float:
        """Spreads below which a cell is worth no colour."""
        return noise_floor(self.deviation)


def is_counter(metric: str) -> bool:
    """Whether a metric only grows, so that its rate is what one looks at."""
    return bool(_COUNTER.search(name_of(metric)))


def name_of(metric: str) -> str:
    """The name of a metric that may be narrowed down: `hw_gpu_clock_mhz{type="sclk"}` is one of several clocks."""
    found = _NARROWED.fullmatch(metric)
    return found[1] if found else metric


def selector(metric: str, **labels: str) -> str:
    """A metric in PromQL, whatever its name and its labels' values hold."""
    matchers = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items()]
    if narrowed := _NARROWED.fullmatch(metric):
        metric = narrowed[1]
        matchers.insert(0, narrowed[2])
    if not _PLAIN_NAME.fullmatch(metric):
        matchers.insert(0, f"__name__={json.dumps(metric, ensure_ascii=False)}")
        metric = ""
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def smoothed(selected: str, counter: bool, pace: Pace) -> str:
    """A selector over the width of one column: the rate of a counter, the mean of a gauge, or its one sample."""
    window = f"[{pace.window_text(counter)}]"
    if counter:
        return f"rate({selected}{window})"
    return f"{'avg' if pace.step > pace.every else 'last'}_over_time({selected}{window})"


def check_metric(telemetry: Telemetry, metric: str) -> None:
    """Refuse a metric that the job does not have."""
    if name_of(metric) not in telemetry.metrics():
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
    """The metric of every host over a span, in at most 400 columns; of thousands of devices in fewer."""
    check_metric(telemetry, metric)
    if how not in get_args(How):
        raise UsageError(f"'{how[:40]}' is no way to join the devices of a host: {', '.join(get_args(How))}")
    first, last = window(telemetry, start, end)
    series, hosts, one = _counts(telemetry, metric, last, last - first)
    columns = max(_LEAST_COLUMNS, min(MOST_COLUMNS, _MOST_CELLS // max(series, 1)))
    pace = pace_of(telemetry, selector(metric, **one), last - first, columns)
    counter = is_counter(metric)
    whole, step = smoothed(selector(metric), counter, pace), pace.step
    if how != "auto":
        sides: tuple[str, ...] = ("avg" if how == "mean" else how,)
    elif counter:
        sides = ("sum",)
    else:  # one of eight GPUs may be too high or too low: whichever is further from the other hosts is shown
        sides = ("max", "min") if series > hosts else ("max",)
    made = [_side(telemetry, f"{side} by (host, instance) ({whole})", side, first, last, step) for side in sides]
    names = tuple(sorted({host for rows, _ in made for host in rows}))
    least = _one_event(metric, pace.window(counter)) if counter else 0.0
    matrices = [_matrix(names, rows, len(times)) for rows, times in made]
    spread = max(spread_of(values, least) for values in matrices)
    shown = [(values, *measure(values, spread)) for values in matrices]
    values, usual, deviation = shown[0]
    for other in shown[1:]:
        further = np.nan_to_num(np.abs(other[2]), nan=-1.0) > np.nan_to_num(np.abs(deviation), nan=-1.0)
        values, usual, deviation = (
            np.where(further, b, a) for a, b in zip((values, usual, deviation), other, strict=True)
        )
    queries = tuple(f"{side} by (host, instance) ({whole})" for side in sides)
    window_s = pace.window(counter)
    return Grid(metric, how, queries, names, made[0][1], values, usual, deviation, step, window_s, spread)  # type: ignore[arg-type]


def _counts(telemetry: Telemetry, metric: str, at: float, span: float) -> tuple[int, int, dict[str, str]]:
    """How many series there are, of how many hosts, and what picks one of these; the last minutes tell, if they can."""
    for window in (min(span, _RECENT_S), span):
        there = f"last_over_time({selector(metric)}[{max(1, round(window))}s])"
        if found := telemetry.instant(f"count by (host, instance) ({there})", at):
            one = {name: value for name, value in found[0].labels.items() if name in ("host", "instance") and value}
            return int(sum(s.value for s in found)), len({host_of(s.labels) for s in found}), one
    return 0, 0, {}


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


def _one_event(metric: str, window_s: float) -> float:
    """The smallest rate that a counter of events can show: one in the window; bytes and seconds have no such grain."""
    return 1.0 / window_s if meaning_of(name_of(metric)).unit in ("", "packets", "tasks") else 0.0
