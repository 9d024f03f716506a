"""The drawings of the performance page as plain geometry; the templates only write it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trackwalker.perf.analysis.result import Bucket, Level, RankSteps, Throughput
from trackwalker.report.charts.plots import Scale, drawable, px, quantile, thin, value_ticks
from trackwalker.report.perf.view import BUCKETS, Grid
from trackwalker.report.text import clip_middle, one_line

_WIDTH, _LEFT, _RIGHT = 1080, 62, 1068
_TOP, _BOTTOM = 12, 208
_POINTS = 2000
_SHADES = 5
_HEAT_ROWS = 64
LABELS = ("restart", "compile", "checkpoint", "profiler", "eval", "warm-up")  # each has a shape of its own


class Item(Protocol):
    """Something a panel shows; the template knows each kind."""

    kind: str


@dataclass
class Panel:
    """One tab of the page."""

    id: str
    title: str
    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Segment:
    """One piece of a bar, in shares of its width."""

    css: str
    x: str
    width: str
    label: str
    value: str
    share: str


@dataclass
class Stack:
    """Pieces that add up to the whole."""

    kind = "stack"
    title: str
    says: str  # the same in words, for who cannot see it
    segments: list[Segment]
    note: str = ""


@dataclass
class Sheet:
    """A table; rows may begin with a bar."""

    kind = "sheet"
    title: str
    header: list[str]
    rows: list[list[str]]
    numbers: set[int] = field(default_factory=set)
    note: str = ""
    bars: list[list[Segment]] = field(default_factory=list)  # of each row
    legend: list[tuple[str, str]] = field(default_factory=list)  # style and word of the bars' pieces
    search: bool = False  # a field that filters the rows
    folded: bool = False


@dataclass
class Mark:
    """One step in the plot of step times."""

    x: str
    y: str
    label: str


@dataclass
class Plot:
    """Seconds of every step."""

    kind = "plot"
    says: str
    width: int
    left: int
    right: int
    bottom: int
    ticks_x: list[tuple[str, str]]
    ticks_y: list[tuple[str, str]]
    usual: list[Mark]
    marks: list[Mark]
    levels: list[tuple[str, str, str, bool]]  # from, to, height, steady
    labels: list[str]
    cut: int  # steps drawn at the upper edge


@dataclass
class Heat:
    """Device x step in shades."""

    kind = "heat"
    says: str
    width: int
    height: int
    rows: list[tuple[str, str, list[tuple[str, int, str]]]]  # y, device, cells of x, shade and words
    cell: str
    tall: str
    steps: list[tuple[str, str]]
    bounds: list[str]  # what each shade stands for
    note: str


def sheet_of(grid: Grid) -> Sheet:
    """A table of the terminal view on the page, without columns in which nothing stands."""
    kept = [n for n in range(len(grid.header)) if n == 0 or any(row[n] for row in grid.rows)]
    rows = [[row[n] for n in kept] for row in grid.rows]
    numbers = {place for place, n in enumerate(kept) if n in grid.numbers}
    return Sheet(grid.title, [grid.header[n] for n in kept], rows, numbers, grid.note)


def stack(title: str, buckets: Sequence[Bucket], whole: float, note: str = "") -> Stack:
    """The step as one bar that adds up."""
    parts = [(b.name, BUCKETS.get(b.name, b.name), b.seconds, b.share) for b in buckets]
    made = segments([(f"b-{name}", label, seconds) for name, label, seconds, _ in parts], whole)
    says = ", ".join(f"{s.label} {s.share}" for s in made)
    return Stack(title, says, made, note)


def segments(parts: Sequence[tuple[str, str, float]], whole: float, scale: float = 1000.0) -> list[Segment]:
    """Pieces side by side: style, label and size of each."""
    out, at = [], 0.0
    for css, label, size in parts:
        width = scale * size / whole if whole > 0 else 0.0
        share = 100 * size / whole if whole > 0 else 0.0
        out.append(Segment(css, f"{at:.2f}", f"{width:.2f}", label, duration(size), f"{share:.1f} %"))
        at += width
    return out


def duration(seconds: float) -> str:
    """A length of time in the unit that fits: 1.24 s, 179.8 ms, 12.5 µs."""
    size = abs(seconds)
    if size >= 1 or size == 0:
        return f"{seconds:.4g} s"
    return f"{1e3 * seconds:.4g} ms" if size >= 1e-3 else f"{1e6 * seconds:.4g} µs"


def step_plot(through: Throughput) -> Plot | None:
    """Seconds over steps; steps that were set aside stand out by shape."""
    series = through.series
    rows = [
        (step, seconds, label)
        for step, seconds, label in zip(series.step, series.seconds, series.label, strict=True)
        if drawable(seconds)
    ]
    if len(rows) < 2:
        return None
    usual = sorted(seconds for _, seconds, label in rows if not label) or sorted(s for _, s, _ in rows)
    high = max(1.15 * quantile(usual, 0.99), 1.6 * quantile(usual, 0.5))
    low = 0.0
    x = Scale(rows[0][0], rows[-1][0], _LEFT, _RIGHT)
    y = Scale(low, high, _BOTTOM, _TOP)
    keep = [rows[i] for i in thin([seconds for _, seconds, _ in rows], _POINTS)]
    kept = {row[0] for row in keep}
    keep += [row for row in rows if row[2] and row[0] not in kept][:_POINTS]
    dots = [Mark(px(x(step)), px(y(seconds)), label) for step, seconds, label in keep]
    labels = [name for name in LABELS if any(m.label == name for m in dots)]
    labels += sorted({m.label for m in dots if m.label and m.label not in LABELS})
    steady = through.seconds
    return Plot(
        says=f"Step times of {len(rows)} steps; steady mean {duration(steady.mean)}",
        width=_WIDTH, left=_LEFT, right=_RIGHT, bottom=_BOTTOM,
        ticks_x=[(px(x(t.value)), t.label) for t in value_ticks(rows[0][0], rows[-1][0], 8)],
        ticks_y=[(px(y(t.value)), t.label) for t in value_ticks(low, high, 4)],
        usual=[m for m in dots if not m.label],
        marks=[m for m in dots if m.label],
        levels=[_level(level, x, y) for level in through.levels if level.steps >= 2],
        labels=labels,
        cut=sum(seconds > high for _, seconds, _ in rows),
    )  # fmt: skip


def _level(level: Level, x: Scale, y: Scale) -> tuple[str, str, str, bool]:
    return px(x(level.first_step)), px(x(level.last_step)), px(y(level.seconds)), level.steady


def heat_map(ranks: RankSteps) -> Heat | None:
    """How late each device came in each step; step lengths where no collectives tell."""
    late = any(v for row in ranks.late_s for v in row)
    table = ranks.late_s if late else ranks.step_s
    values = [v for row in table for v in row if v is not None]
    if not values or not ranks.steps:
        return None
    order = sorted(range(len(table)), key=lambda i: -sum(v or 0.0 for v in table[i]))
    shown = sorted(order[:_HEAT_ROWS])
    lo, hi = (0.0, max(values)) if late else (min(values), max(values))
    left, tall = 230, 18 if len(shown) <= 24 else 10
    cell = (_RIGHT - left) / len(ranks.steps)
    what = "late by" if late else "took"
    rows = []
    for n, i in enumerate(shown):
        cells = [
            (px(left + cell * j), _shade(v, lo, hi), f"{ranks.devices[i]}, step {ranks.steps[j]}: {what} {duration(v)}")
            for j, v in enumerate(table[i])
            if v is not None
        ]
        rows.append((px(4 + n * tall), clip_middle(one_line(ranks.devices[i]), 32), cells))
    every = max(len(ranks.steps) // 12, 1)
    steps = [(px(left + cell * (j + 0.5)), str(s)) for j, s in enumerate(ranks.steps) if j % every == 0]
    bounds = [duration(lo + (hi - lo) * n / _SHADES) for n in range(_SHADES + 1)]
    left_out = f"; the {len(shown)} of {len(table)} devices with most are shown" if len(shown) < len(table) else ""
    note = (
        f"how long after the middle device it came to the collectives of the step{left_out}"
        if late
        else f"length of the step on the device{left_out}"
    )
    says = f"{len(shown)} devices by {len(ranks.steps)} steps, {note}"
    return Heat(
        says, _WIDTH, 4 + tall * len(shown) + 22, rows, px(max(cell - 1, 0.5)), px(tall - 1), steps, bounds, note
    )


def _shade(value: float, lo: float, hi: float) -> int:
    return min(int(_SHADES * (value - lo) / (hi - lo)), _SHADES - 1) if hi > lo else 0
