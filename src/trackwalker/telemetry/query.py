"""One PromQL question to one ended job: an instant where its data end, or a range over all of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.telemetry.client import Labels, QueryError, Sample, Telemetry
from trackwalker.telemetry.coverage import scrape_interval
from trackwalker.telemetry.recorded import hints, metrics_in

SCHEMA = "trackwalker.tsdb-query/1"
_POINTS = 250
_FINE = 1.0  # seconds: how exactly the last moment with data is looked for
_MOST_POINTS = 1_000_000  # for each series
_FAR = 1e11  # the year 5138 in seconds: larger ones are milliseconds
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")


@dataclass(frozen=True)
class Series:
    """One series of an answer: (time, value) pairs; where it has no value there is no pair."""

    labels: Labels
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Answer:
    """What a query gave; `step` is None for an instant."""

    promql: str
    start: float
    end: float
    step: float | None
    series: list[Series]
    damage: list[str] = field(default_factory=list)
    recording_end: float | None = None  # of an instant that nobody chose: where the whole recording ends
    hints: list[str] = field(default_factory=list)  # names that were not recorded, and what they may have meant

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; NaN and infinities, which JSON has not, as the strings Prometheus uses."""
        when: dict[str, Any] = {"start": self.start, "end": self.end, "step": self.step}
        if self.step is None:
            chosen = "given" if self.recording_end is None else "last with data" if self.series else "end of recording"
            when = {"at": self.end, "at_is": chosen}
        return {
            "schema": SCHEMA,
            "query": self.promql,
            **when,
            "series": [
                {"labels": s.labels, "points": [[t, v if math.isfinite(v) else number(v)] for t, v in s.points]}
                for s in self.series
            ],
            "damage": self.damage,
            "hints": self.hints,
        }

    def columns(self) -> list[str]:
        """The names of all labels, the metric's own name first."""
        return sorted({name for s in self.series for name in s.labels}, key=lambda n: (n != "__name__", n))

    def rows(self) -> Iterator[list[str]]:
        """A header and one row for each point: labels, time, value."""
        columns = self.columns()
        yield ["metric" if c == "__name__" else c for c in columns] + ["time", "value"]
        for series in self.series:
            labels = [series.labels.get(c, "") for c in columns]
            for time, value in series.points:
                yield [*labels, f"{time:.3f}", number(value)]


def ask_instant(telemetry: Telemetry, promql: str, at: float | None) -> Answer:
    """The values at one time, by default at the last moment at which the query has any.

    Most series end a little before the recording does: what they measured went away first.
    """
    end = telemetry.range()[1]
    when = end if at is None else at
    try:
        samples = telemetry.instant(promql, when)
        if at is None and not samples:
            when, samples = _last_with_data(telemetry, promql)
    except QueryError as e:
        if "use raw()" not in str(e):
            raise
        what = "that is not one number for each series: take a function over it, such as last_over_time(…)"
        raise UsageError(f"{promql}: {what}") from None
    series = [Series(s.labels, [(s.time, s.value)]) for s in samples]
    said = [*too_short(telemetry, promql), *([] if series else hints(telemetry, promql))]
    return Answer(promql, when, when, None, series, telemetry.damage, end if at is None else None, said)


def _last_with_data(telemetry: Telemetry, promql: str) -> tuple[float, list[Sample]]:
    """The last moment of a grid, refined, at which a query gives anything; the end of the data where it never does."""
    begin, end = telemetry.range()
    first, last, step = begin, end, max(1.0, (end - begin) / _POINTS)
    while True:
        matrix = telemetry.matrix(promql, first, last, step)
        there = [t for i, t in enumerate(matrix.times.tolist()) if (matrix.values[:, i] == matrix.values[:, i]).any()]
        if not there:
            return end, []
        if step <= _FINE:
            return there[-1], telemetry.instant(promql, there[-1])
        first, last, step = there[-1], min(end, there[-1] + step), max(_FINE, step / _POINTS)


def ask_range(telemetry: Telemetry, promql: str, start: float | None, end: float | None, step: float | None) -> Answer:
    """The values on a grid, by default 250 steps from the first sample to the last."""
    first, last = telemetry.range()
    start, end = first if start is None else start, last if end is None else end
    if end < start:
        raise UsageError(f"the end ({iso(end)}) lies before the start ({iso(start)})")
    step = max(1.0, round((end - start) / _POINTS)) if step is None else step
    if not 0.001 <= step < math.inf:
        raise UsageError("--step is the seconds between two points, at least 0.001")
    if (end - start) / step > _MOST_POINTS:
        raise UsageError(f"{(end - start) / step:,.0f} points are too many: give a longer --step or a shorter range")
    matrix = telemetry.matrix(promql, start, end, step)
    times = matrix.times.tolist()
    series = [
        Series(labels, [(t, v) for t, v in zip(times, row, strict=True) if v == v])
        for labels, row in zip(matrix.labels, matrix.values.tolist(), strict=True)
    ]
    said = [*too_short(telemetry, promql), *([] if series else hints(telemetry, promql))]
    return Answer(promql, start, end, step, series, telemetry.damage, hints=said)


def parse_time(text: str | None) -> float | None:
    """Epoch seconds from what a person writes: a number, or ISO 8601 in UTC unless it says otherwise."""
    if text is None:
        return None
    if _NUMBER.fullmatch(text.strip()):
        if not 0 <= float(text) < _FAR:
            raise UsageError(f"'{text}' is not a time in epoch seconds")
        return float(text)
    try:
        when = datetime.fromisoformat(text.strip())
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"'{text}' is not a time: give epoch seconds or ISO such as 2026-06-01T08:00:00Z") from None


def iso(time: float) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def number(value: float) -> str:
    """A value in the fewest digits that give it back; not-numbers as Prometheus writes them."""
    if math.isfinite(value):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


_SAMPLES = 4  # two make a rate; one lost scrape must not take it away, and the window's edges fall anywhere
_CHANGES = re.compile(r"\b(rate|irate|increase|delta|idelta|deriv|changes|resets)\s*\(")
_RANGE = re.compile(r"\[((?:\d+(?:\.\d+)?(?:ms|[smhdwy]))+)(?::[^\]]*)?\]")
_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}


def seconds_of(duration: str) -> float:
    """A duration as PromQL writes it."""
    return sum(float(n) * _UNIT[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdwy])", duration))


def too_short(telemetry: Telemetry, promql: str) -> list[str]:
    """One line for each range of a rate or the like that holds too few samples of what was recorded."""
    if _CHANGES.search(promql) is None:
        return []
    recorded = [name for name in metrics_in(promql) if name in telemetry.metrics()]
    ranges = {text: seconds_of(text) for text in _RANGE.findall(promql)}
    if not recorded or not ranges:
        return []
    interval = scrape_interval(telemetry, recorded[0])
    least = math.ceil(_SAMPLES * round(interval, 3))
    return [
        f"[{text}] holds {seconds / interval:.2g} samples of a scrape every {interval:.3g} s: use at least [{least}s]"
        for text, seconds in ranges.items()
        if interval > 0 and seconds < _SAMPLES * interval * 0.99
    ]
