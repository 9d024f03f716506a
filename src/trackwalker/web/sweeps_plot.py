"""A sweep's plot as a drawing: points with their intervals, and the numbers behind them for the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trackwalker.report import words
from trackwalker.report.text import clip_middle, one_line
from trackwalker.sweep.model import Plot

WIDTH, HEIGHT = 760.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 14.0, 46.0
_MOST_LABELS = 14
_MOST_POINTS = 2000


@dataclass(frozen=True)
class Point:
    """One mark; low and high are heights on the drawing."""

    x: float
    y: float
    low: float | None
    high: float | None
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
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    rows: tuple[tuple[str, str, str], ...]
    width: float = WIDTH
    height: float = HEIGHT


def figure(plot: Plot) -> Figure:
    """The drawing of a plot; what was not measured has a row in the table and no mark."""
    count = min(len(plot.x), len(plot.y), _MOST_POINTS)
    y = [_finite(v) for v in plot.y[:count]]
    low, high = _padded(plot.low, count), _padded(plot.high, count)
    numbers = [float(v) for v in plot.x[:count] if isinstance(v, (int, float)) and math.isfinite(v)]
    numeric = len(numbers) == count and len(set(numbers)) > 1
    places = numbers if numeric else [float(i) for i in range(count)]
    ground = [v for v in (*y, *low, *high) if v is not None]
    ticks = _ticks(min(ground, default=0.0), max(ground, default=1.0))
    left, right = (min(places, default=0.0), max(places, default=1.0)) if numeric else (-0.5, count - 0.5)

    def across(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (value - left) / ((right - left) or 1.0), 1)

    def up(value: float) -> float:
        bottom, top = ticks[0], ticks[-1]
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - bottom) / ((top - bottom) or 1.0), 1)

    names = [words.number(v) if isinstance(v, (int, float)) else one_line(str(v)) for v in plot.x[:count]]
    points = []
    for i, value in enumerate(y):
        if value is not None:
            ends = [None if e is None else up(e) for e in (low[i], high[i])]
            points.append(Point(across(places[i]), up(value), ends[0], ends[1], i in plot.marked, names[i]))
    every = max(-(-count // _MOST_LABELS), 1)
    line = "L".join(f"{p.x} {p.y}" for p in sorted(points, key=lambda p: p.x))
    return Figure(
        one_line(plot.title),
        one_line(plot.x_label),
        one_line(plot.y_label),
        tuple(points),
        f"M{line}" if numeric and len(points) > 1 else "",
        tuple((across(places[i]), clip_middle(names[i], 14)) for i in range(0, count, every)),
        tuple((up(t), words.number(t)) for t in ticks),
        tuple((names[i], _number(y[i]), _interval(low[i], high[i])) for i in range(count)),
    )


def _padded(values: Sequence[float | None], count: int) -> list[float | None]:
    return [_finite(v) for v in values[:count]] + [None] * max(count - len(values), 0)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _ticks(low: float, high: float) -> list[float]:
    """Round heights around the values; from zero where that does not flatten the picture."""
    if low > 0 and low < 0.5 * high:
        low = 0.0
    span = (high - low) or abs(high) or 1.0
    raw = span / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
    first = math.floor(low / step)
    last = math.ceil(high / step)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]


def _number(value: float | None) -> str:
    return "not measured" if value is None else words.number(value)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{words.number(low)} to {words.number(high)}"
