"""How finely a chart looks: one column's width, and what it looks back over, by the zoom and by the scrape interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trackwalker.report.charts.plots import Point, Scale, area_path, line_path, stretches
from trackwalker.telemetry.client import Telemetry

_RATE = 2.2  # scrape intervals that hold two samples for certain, a late one included
_VALUE = 1.5  # and one
_NEAR_S = 600.0
_LOOKS = (0.3, 0.6, 1.0)  # of the recording: where samples are counted


@dataclass(frozen=True)
class Pace:
    """A column's width and the time between two samples, in seconds."""

    step: float
    every: float

    def window(self, counter: bool) -> float:
        """What one column looks back over: its own width, and no more than it takes to hold a sample (a rate: two)."""
        return max(self.step, (_RATE if counter else _VALUE) * self.every)

    def window_text(self, counter: bool) -> str:
        """The same as PromQL writes it."""
        return duration_text(self.window(counter))


def pace_of(telemetry: Telemetry, selected: str, span: float, columns: int) -> Pace:
    """The pace of a chart of so many columns over a span: never finer than what was sampled could show.

    `selected` picks the series whose samples are counted: one host's are enough, and quicker than all.
    """
    every = sample_interval(telemetry, selected)
    return Pace(max(min(1.0, every or 1.0), span / columns), every)


def sample_interval(telemetry: Telemetry, selected: str) -> float:
    """Seconds between two samples of these series, where they lie densest: a gap is no interval.

    Exporters are asked at different intervals, and some values are stored once for each step: only the series
    themselves can tell.
    """
    first, last = telemetry.range()
    for window in dict.fromkeys((min(_NEAR_S, last - first), last - first)):
        if window <= 0:
            break
        counted = f"max(count_over_time({selected}[{round(window * 1000) + 1}ms]))"
        looks = dict.fromkeys(first + max(window, share * (last - first)) for share in _LOOKS)
        most = max((s.value for at in looks for s in telemetry.instant(counted, at)), default=0.0)
        if most > 2:
            return window / (most - 1.0)
    return last - first


def duration_text(seconds: float) -> str:
    """A duration in PromQL: whole seconds where that is nearly the same."""
    return f"{math.ceil(seconds)}s" if seconds >= 5 else f"{max(1, math.ceil(1000 * seconds))}ms"


SPARK_WIDTH, SPARK_HEIGHT = 96.0, 20.0


def spark_path(points: tuple[float | None, ...]) -> str:
    """A sparkline as an SVG path from zero up: a small drop looks small."""
    return "".join(map(line_path, _runs(points)))


def spark_area(points: tuple[float | None, ...]) -> str:
    """The surface below the sparkline."""
    return "".join(area_path(run, SPARK_HEIGHT) for run in _runs(points))


def _runs(points: tuple[float | None, ...]) -> list[list[Point]]:
    x, y = Scale(0, max(len(points) - 1, 1), 0, SPARK_WIDTH), Scale(0, 1, SPARK_HEIGHT, 1.5)
    return stretches([None if value is None else (x(i), y(value)) for i, value in enumerate(points)])
