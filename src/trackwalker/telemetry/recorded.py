"""What a recording holds: every metric with its kind, unit, hosts, first and last sample; and names nearly like one."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.telemetry.client import Telemetry, host_of

SCHEMA = "trackwalker.tsdb-metrics/1"
_BINS = 250  # in which presence is looked for; the edges are then read exactly
_SUGGESTED = 3
_CLOSE = 0.7
# By the end of a name, as Prometheus' naming has it; the longest ending that fits counts.
_UNITS = {
    "_bytes": "bytes", "_seconds": "s", "_watts": "W", "_celsius": "°C", "_joules": "J", "_mhz": "MHz",
    "_percent": "%", "_pct": "%", "_ratio": "1", "_us": "µs", "_pkts": "packets", "_packets": "packets",
}  # fmt: skip
_NOT_METRICS = frozenset(
    ("and", "or", "unless", "on", "ignoring", "by", "without", "group_left", "group_right", "bool", "offset", "start",
     "end", "inf", "nan", "atan2")
)  # fmt: skip
# What may hold names that are none of metrics: texts, selectors, lists of labels, durations and numbers.
_OTHER = re.compile(
    r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)'
    r"|\b\d[\w.]*"
)
_NAME = re.compile(r"[a-zA-Z_:][\w:]*(?!\w*\s*\()")


@dataclass(frozen=True)
class Metric:
    """One recorded metric."""

    name: str
    kind: str  # counter, gauge, info, rule (computed while recording), histogram
    unit: str
    hosts: list[str]
    series: int
    first: float
    last: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return dict(self.__dict__)


def kind_of(name: str) -> str:
    """The kind of a metric by its name."""
    if ":" in name:
        return "rule"
    for ending, kind in (("_total", "counter"), ("_info", "info"), ("_bucket", "histogram")):
        if name.endswith(ending):
            return kind
    return "gauge"


def unit_of(name: str) -> str:
    """The unit of a metric by its name; empty where the name tells none."""
    bare = name.split(":")[1] if name.count(":") == 2 else name
    bare = bare.removesuffix("_total")
    return next((unit for ending, unit in _UNITS.items() if bare.endswith(ending)), "")


def list_metrics(
    telemetry: Telemetry, pattern: str | None, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[Metric]:
    """Every metric whose name holds the pattern (a regular expression), sorted by name."""
    try:
        wanted = re.compile(pattern or "", re.IGNORECASE)
    except re.error as e:
        raise UsageError(f"'{pattern}' is no regular expression: {e}") from e
    names = sorted(name for name in telemetry.metrics() if wanted.search(name))
    found = []
    for done, name in enumerate(names):
        progress(done, len(names))
        metric = _describe(telemetry, name)
        if metric is not None:
            found.append(metric)
    return found


def _describe(telemetry: Telemetry, name: str) -> Metric | None:
    begin, end = telemetry.range()
    begin, end = math.floor(begin), math.ceil(end)
    width = max(1, math.ceil((end - begin) / _BINS))
    selector = f'{{__name__="{name}"}}'
    whole = f"count by (host, instance) (count_over_time({selector}[{max(1, end - begin)}s] @ {end}))"
    owners = [(host_of(sample.labels), sample.value) for sample in telemetry.instant(whole, end)]
    grid = telemetry.matrix(f"count(count_over_time({selector}[{width}s]))", begin + width, end + width, width)
    there = [t for row in grid.values for t, v in zip(grid.times.tolist(), row.tolist(), strict=True) if v == v]
    if not owners or not there:
        return None
    times = [
        float(t) for at in (there[0], there[-1]) for _, ts, _ in telemetry.raw(selector, at - width, at) for t in ts
    ]
    hosts = sorted({host for host, _ in owners if host})
    return Metric(name, kind_of(name), unit_of(name), hosts, int(sum(n for _, n in owners)), min(times), max(times))


def metrics_in(promql: str) -> list[str]:
    """The names in a query that stand where a metric's name does."""
    bare = _OTHER.sub(" ", promql)
    return [name for name in dict.fromkeys(_NAME.findall(bare)) if name.lower() not in _NOT_METRICS]


def hints(telemetry: Telemetry, promql: str) -> list[str]:
    """What to say of names in a query that were not recorded."""
    known = telemetry.metrics()
    said = []
    for name in metrics_in(promql):
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=_SUGGESTED, cutoff=_CLOSE)
            nearest = f"; did you mean {' or '.join(close)}?" if close else "; 'tsdb metrics' lists what was recorded"
            said.append(f"no metric {name} was recorded{nearest}")
    return said
