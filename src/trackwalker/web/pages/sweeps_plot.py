"""A sweep's plot as a drawing in the page's colours: points with their intervals, and the numbers for the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trackwalker.report import words
from trackwalker.report.charts.plots import Scale, drawable, line_path, px, value_ticks
from trackwalker.report.text import clip_middle, one_line
from trackwalker.sweep.model import Plot

WIDTH, HEIGHT = 860, 300
LEFT, RIGHT, TOP, BOTTOM = 70.0, 844.0, 12.0, 250.0
_MOST_NAMES = 14
_MOST_POINTS = 2000


@dataclass(frozen=True)
class Point:
    """One mark: where it is, and the path of its interval."""

    x: str
    y: str
    interval: str
    marked: bool
    name: str


@dataclass(frozen=True)
class Figure:
    """A drawing and its table."""

    title: str
    x_label: str
    y_label: str
    points: tuple[Point, ...]
    course: str  # a line through the points where x is a number
    x_ticks: tuple[tuple[str, str], ...]
    y_ticks: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, str, str], ...]


def figure(plot: Plot) -> Figure:
    """The drawing of a plot; what was not measured has a row in the table and no mark."""
    count = min(len(plot.x), len(plot.y), _MOST_POINTS)
    values, low, high = (_padded(v, count) for v in (plot.y, plot.low, plot.high))
    names = [words.number(x) if isinstance(x, (int, float)) else one_line(x) for x in plot.x[:count]]
    numbers = [float(x) for x in plot.x[:count] if isinstance(x, (int, float)) and drawable(x)]
    numeric = len(numbers) == count and len(set(numbers)) > 1
    places = numbers if numeric else [float(i) for i in range(count)]
    x, y = _across(places), _up([v for v in (*values, *low, *high) if v is not None])
    points = []
    for i, value in enumerate(values):
        if value is not None:
            at, down, up = px(x(places[i])), low[i], high[i]
            bar = ""
            if down is not None and up is not None:
                bar = f"M{at} {px(y(down))}V{px(y(up))}m-4 0h8M{at} {px(y(down))}m-4 0h8"
            points.append(Point(at, px(y(value)), bar, i in plot.marked, names[i]))
    known = [(x(at), y(v)) for at, v in sorted(zip(places, values, strict=True), key=lambda p: p[0]) if v is not None]
    every = max(-(-count // _MOST_NAMES), 1)
    named = [(px(x(places[i])), clip_middle(names[i], 14)) for i in range(0, count, every)]
    ticked = [(px(x(t.value)), t.label) for t in value_ticks(x.lo, x.hi, 8)]
    return Figure(
        one_line(plot.title),
        one_line(plot.x_label),
        one_line(plot.y_label),
        tuple(points),
        line_path(known) if numeric and len(known) > 1 else "",
        tuple(ticked if numeric else named),
        tuple((px(y(t.value)), t.label) for t in value_ticks(y.lo, y.hi)),
        tuple((names[i], _number(values[i]), _interval(low[i], high[i])) for i in range(count)),
    )


def _across(places: list[float]) -> Scale:
    low, high = min(places, default=0.0), max(places, default=1.0)
    pad = 0.06 * (high - low) or 0.5
    return Scale(low - pad, high + pad, LEFT, RIGHT)


def _up(values: list[float]) -> Scale:
    """From zero, unless that would flatten the picture."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(0.0 if 0 < low < 0.5 * high else low - room, high + room, BOTTOM, TOP)


def _padded(values: Sequence[float | None], count: int) -> list[float | None]:
    return [v if drawable(v) else None for v in values[:count]] + [None] * max(count - len(values), 0)


def _number(value: float | None) -> str:
    return "not measured" if value is None else words.number(value)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{words.number(low)} to {words.number(high)}"
