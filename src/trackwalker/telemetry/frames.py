"""One metric's series as a table on a time grid, read with as few and as small answers as will do.

A probe comes first: how many series there are, how often they are sampled, and which counters moved at all. Counters
that stayed where they were (nearly all error counters of a fleet) are never shipped: they are zeros, and only counted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from trackwalker.telemetry.client import Floats, Labels, Telemetry, host_of
from trackwalker.telemetry.meaning import Meaning, Place, place_of

_LOOK_S = 300.0  # how long samples are counted to learn their interval
_MOST_CELLS = 60_000  # values of one answer: more of them come in coarser bins
_FEWEST_BINS = 24
_FEW_HOSTS = 40  # named one by one in a selector
_FEW_FALLS = 4  # series whose fall is looked at sample by sample
_RESTART = 0.05  # of the value before: a counter begins anew near zero, a sliding window does not empty at once
_MARGIN = 1.3  # samples come a little late

_NEW = "trackwalker_new"  # marks series that were not there at the beginning

Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Grid:
    """Equal bins over a stretch of time; bin k ends at start + (k + 1) * step."""

    start: float
    end: float
    step: float

    @property
    def bins(self) -> int:
        """How many whole bins there are."""
        return max(0, math.floor((self.end - self.start) / self.step + 1e-6))

    def coarser(self, times: int) -> Grid:
        """The same stretch in bins so many times as long."""
        return Grid(self.start, self.end, self.step * times)


@dataclass(frozen=True)
class Frame:
    """values[series, bin]: means of gauges, rates per second of counters; NaN where nothing was recorded."""

    meaning: Meaning
    labels: list[Labels]
    places: list[Place]
    grid: Grid
    values: Floats
    silent: int  # series that are not here: counters that did not move
    restarts: dict[int, float]  # series to the moment its counter began anew
    as_rate: bool

    @property
    def ends(self) -> Floats:
        """When each bin ends."""
        return self.grid.start + self.grid.step * np.arange(1, self.values.shape[1] + 1)


def read_frame(
    telemetry: Telemetry,
    meaning: Meaning,
    grid: Grid,
    coarsest: int,
    hosts: Collection[str],
    known: dict[str, Sampling],
) -> Frame | None:
    """A metric's series of these hosts (of all, when none are named); None where it has nothing to compare.

    Bins may be made up to `coarsest` times as long where there are very many series. What is learnt of a metric's
    sampling is kept in `known` for the next grid.
    """
    probe = _probe(telemetry, meaning, grid, hosts, known)
    if probe is None:
        return None
    selector = meaning.metric
    if probe.moved is not None:
        if not probe.moved:
            return _nothing(meaning, grid, probe.series)
        names = sorted({h for labels in probe.moved if (h := labels.get("host"))})
        if len(names) <= _FEW_HOSTS and all("host" in labels for labels in probe.moved):
            selector = f"{meaning.metric}{{host=~{json.dumps('|'.join(map(re.escape, names)))}}}"
    as_rate = meaning.counts
    restarts: dict[Key, float] | None = None
    if as_rate and probe.fell:
        restarts = _restarts(telemetry, meaning.metric, probe.fell, grid)
        as_rate = restarts is not None  # a count that falls a little is one over a sliding window, whatever its name
    times = min(coarsest, max(1, math.ceil(probe.series * grid.bins / _MOST_CELLS)))
    times = min(times, max(1, grid.bins // _FEWEST_BINS))
    own = grid.coarser(times)
    # A slower exporter than the grid: longer bins, as a mean of nothing is nothing.
    if own.step < probe.interval:
        own = grid.coarser(math.ceil(probe.interval / grid.step))
    if own.bins < 2:
        return None
    width = max(own.step, _MARGIN * probe.interval)
    width = max(own.step + probe.interval, 2.0 * _MARGIN * probe.interval) if as_rate else width
    function = "rate" if as_rate else "avg_over_time"
    matrix = telemetry.matrix(
        f"{function}({selector}[{math.ceil(1000 * width)}ms])",
        own.start + own.step,
        own.start + own.bins * own.step,
        own.step,
    )
    keep = [i for i, labels in enumerate(matrix.labels) if not hosts or host_of(labels) in hosts]
    labels = [matrix.labels[i] for i in keep]
    found = {_key(own_labels): i for i, own_labels in enumerate(labels)} if restarts else {}
    return Frame(
        meaning,
        labels,
        [place_of(own_labels) for own_labels in labels],
        own,
        matrix.values[keep],
        max(0, probe.series - len(keep)) if probe.moved is not None else 0,
        {found[k]: at for k, at in (restarts or {}).items() if k in found},
        as_rate,
    )


@dataclass(frozen=True)
class Sampling:
    """How many series a metric has, and how far apart their samples are."""

    series: int
    interval: float


@dataclass(frozen=True)
class _Probe:
    series: int
    interval: float
    moved: list[Labels] | None  # None: not a counter, so all of them are read
    fell: list[Labels]


def _probe(
    telemetry: Telemetry, meaning: Meaning, grid: Grid, hosts: Collection[str], known: dict[str, Sampling]
) -> _Probe | None:
    name, begin, end = meaning.metric, f"@ {grid.start:.3f}", f"@ {grid.end:.3f}"
    errors = meaning.kind in ("counter", "windowed") and meaning.layer != "activity"
    if errors and (quiet := _quiet(telemetry, name, begin, end, grid.end)):
        return _Probe(quiet, grid.step, [], [])
    sampled = known.get(name) or _sampling(telemetry, name, grid, hosts)
    if sampled.series == 0:
        return None
    known[name] = sampled
    if meaning.kind == "state":
        query = f"changes({name}[{round(1000 * (grid.end - grid.start))}ms] {end}) > 0"
    elif errors:
        new = f'label_replace({name} {end} unless {name} {begin}, "{_NEW}", "1", "", "")'
        query = f"({name} {end} - {name} {begin}) != 0 or {new}"
    else:
        return _Probe(sampled.series, sampled.interval, None, [])
    answer = [s for s in telemetry.instant(query, grid.end) if not hosts or host_of(s.labels) in hosts]
    fell = [s.labels for s in answer if s.value < 0 and _NEW not in s.labels]
    moved = [{k: v for k, v in s.labels.items() if k != _NEW} for s in answer]
    return _Probe(sampled.series, sampled.interval, moved, fell)


def _quiet(telemetry: Telemetry, name: str, begin: str, end: str, at: float) -> int:
    """How many series a counter has none of which moved, by their sums alone; 0 when one did, or came or went."""
    query = f'label_replace(sum({name} {end}) - sum({name} {begin}), "{_NEW}", "moved", "", "") or count({name} {end})'
    told = {s.labels.get(_NEW, "series"): s.value for s in telemetry.instant(query, at)}
    return round(told.get("series", 0.0)) if told.get("moved") == 0.0 else 0


def _sampling(telemetry: Telemetry, metric: str, grid: Grid, hosts: Collection[str]) -> Sampling:
    if len(hosts) > _FEW_HOSTS:  # one stands for all of a large fleet, if it has the metric
        one = _counted(telemetry, f"{metric}{{host={json.dumps(min(hosts))}}}", grid)
        if one.series:
            return Sampling(one.series * len(hosts), one.interval)
    return _counted(telemetry, metric, grid)


def _counted(telemetry: Telemetry, metric: str, grid: Grid) -> Sampling:
    window = min(_LOOK_S, grid.end - grid.start)
    for at in (
        grid.end,
        0.5 * (grid.start + grid.end + window),
    ):  # what came late is there at the end, what left is not
        # How many series have how many samples: one answer for both.
        query = f'count_values("samples", count_over_time({metric}[{round(1000 * window)}ms] @ {at:.3f}))'
        counts = {float(s.labels["samples"]): s.value for s in telemetry.instant(query, at)}
        if counts:
            interval = window / max(1.0, max(counts) - 1.0)
            return Sampling(round(sum(counts.values())), min(window, interval))
    return Sampling(0, window)


def _nothing(meaning: Meaning, grid: Grid, series: int) -> Frame:
    return Frame(meaning, [], [], grid, np.empty((0, grid.bins)), series, {}, meaning.counts)


def _restarts(telemetry: Telemetry, metric: str, fell: list[Labels], grid: Grid) -> dict[Key, float] | None:
    """When counters that fell began anew; None when they did not: then they count over a sliding window."""
    out = {}
    for labels in fell[:_FEW_FALLS]:
        pairs = ",".join(f"{k}={json.dumps(v)}" for k, v in _key(labels))
        for full, times, values in telemetry.raw(f"{metric}{{{pairs}}}", grid.start, grid.end):
            falls = np.flatnonzero(np.diff(values) < 0)
            if not len(falls):
                continue
            if (values[falls + 1] > _RESTART * values[falls]).any():
                return None
            out[_key(full)] = float(times[falls[-1] + 1])
    return out


def _key(labels: Labels) -> Key:
    return tuple(sorted((k, v) for k, v in labels.items() if k not in ("__name__", _NEW)))
