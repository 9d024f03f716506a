"""Who is in a recording, and when it was silent: asked of the server, so that large databases stay there."""

from __future__ import annotations

import math

import numpy as np

from trackwalker.telemetry.client import Telemetry, host_of

_EVERYTHING = '{__name__!=""}'
# Every recorded host has at least one of these, with the label `host`; `up` only says that somebody asked it.
PRESENCE = ("hw_rank_up", "hw_procs_running", "hw_gpu_power_watts")  # every recorded host has at least one of these
_SHORTEST_GAP_S = 60.0
_MISSED_SCRAPES = 5
_WINDOW_S = 600.0
_LOOKS = 20


def hosts_seen(telemetry: Telemetry) -> set[str]:
    """The hosts that delivered anything at any time."""
    first, last = telemetry.range()
    window = f"[{math.ceil((last - first) * 1000) + 1}ms]"
    found: set[str] = set()
    for metric in PRESENCE:
        if metric in telemetry.metrics():
            found |= _hosts(telemetry, f"last_over_time({metric}{window})", last)
    if not found and "up" in telemetry.metrics():
        found = _hosts(telemetry, f"max_over_time(up{window}) > 0", last)
    return found or _hosts(telemetry, f"last_over_time({_EVERYTHING}{window})", last)


def _hosts(telemetry: Telemetry, promql: str, at: float) -> set[str]:
    samples = telemetry.instant(f"group by (host, instance) ({promql})", at)
    # Where there is a host label it decides: an instance may be the same machine's address.
    named = {s.labels["host"] for s in samples if s.labels.get("host")}
    return named or {host for s in samples if (host := host_of(s.labels))}


def find_gaps(telemetry: Telemetry) -> list[tuple[float, float]]:
    """Stretches without any sample, from the last sample before to the first one after."""
    first, last = telemetry.range()
    usual = next((m for m in ("up", *PRESENCE) if m in telemetry.metrics()), _EVERYTHING)
    longest = max(_SHORTEST_GAP_S, _MISSED_SCRAPES * _interval(telemetry, usual, first, last))
    gaps = _silences(telemetry, usual, first, last, longest)
    if usual == _EVERYTHING:
        return gaps
    # Where that one metric is silent another may not be.
    return [real for begin, end in gaps for real in _silences(telemetry, _EVERYTHING, begin, end, longest)]


def scrape_interval(telemetry: Telemetry, metric: str) -> float:
    """Seconds between two samples of a metric."""
    # Every host has one `up`, but many series of a device's metric.
    return _interval(telemetry, "up" if "up" in telemetry.metrics() else metric, *telemetry.range())


def _interval(telemetry: Telemetry, selector: str, first: float, last: float) -> float:
    """Seconds between samples where they lie densest, so that gaps do not count."""
    window = min(_WINDOW_S, last - first)
    if window <= 0:
        return 0.0
    step = max(0.001, (last - first - window) / _LOOKS)
    counts = telemetry.matrix(
        f"max(count_over_time({selector}[{round(window * 1000) + 1}ms]))", first + window, last, step
    ).values
    most = float(np.nanmax(counts)) if counts.size and not np.isnan(counts).all() else 1.0
    return window / max(1.0, most - 1.0)


def _silences(
    telemetry: Telemetry, selector: str, first: float, last: float, longest: float
) -> list[tuple[float, float]]:
    # Tiles of half the length: a silence that counts covers at least one whole tile, wherever it begins.
    tile = longest / 2
    if last - first <= longest:
        return []
    tiles = telemetry.matrix(
        f"count(last_over_time({selector}[{round(tile * 1000)}ms]))", first + tile, last + tile, tile
    )
    filled = ~np.isnan(tiles.values).all(axis=0) if len(tiles.values) else np.zeros(len(tiles.times), dtype=bool)
    found = []
    empty = np.flatnonzero(~filled)
    for run in np.split(empty, np.flatnonzero(np.diff(empty) > 1) + 1) if len(empty) else []:
        opens, closes = float(tiles.times[run[0]]) - tile, float(tiles.times[run[-1]])
        before = _edge(telemetry, selector, max(first, opens - tile), opens, newest=True)
        after = _edge(telemetry, selector, closes, min(last, closes + tile), newest=False)
        begin, end = first if before is None else before, last if after is None else after
        if end - begin > longest:
            found.append((begin, end))
    return found


def _edge(telemetry: Telemetry, selector: str, start: float, end: float, *, newest: bool) -> float | None:
    """The time of the last (or first) sample between two times."""
    times = [t for _, times, _ in telemetry.raw(selector, start, end) for t in (times[0], times[-1])]
    return float(max(times) if newest else min(times)) if times else None
