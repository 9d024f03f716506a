"""Plot geometry as pure functions: scales, ticks, thinning, paths and labels that do not collide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeGuard

from trackwalker.report.words import is_time, number

Point = tuple[float, float]

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in no one's locale
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_DAY = 86400


@dataclass(frozen=True)
class Scale:
    """A straight map from a span of values to a span of pixels; values outside are held at its ends."""

    lo: float
    hi: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = (value - self.lo) / (self.hi - self.lo) if self.hi > self.lo else 0.0
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)


@dataclass(frozen=True)
class Tick:
    """One tick of an axis; `sub` is the date, given where it changes."""

    value: float
    label: str
    sub: str = ""


@dataclass(frozen=True)
class Label:
    """A text that wants a place at `x`, `width` pixels wide."""

    x: float
    width: float


@dataclass(frozen=True)
class Place:
    """Where a label went: its row (0 is next to the plot) and whether it reads away to the left."""

    row: int
    left: bool


def drawable(value: float | None) -> TypeGuard[float]:
    """Whether a value can be drawn: there, finite, and small enough that differences stay finite."""
    return value is not None and math.isfinite(value) and abs(value) < 1e150


def px(value: float) -> str:
    """A coordinate with one decimal: enough for the eye, and half the bytes."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def nice_step(span: float, target: int) -> float:
    """The 1-2-5 step that cuts a span into about `target` parts."""
    raw = span / max(target, 1)
    base = 10.0 ** math.floor(math.log10(raw))
    return next(base * factor for factor in (1, 2, 5, 10) if base * factor >= raw * (1 - 1e-9))


def value_ticks(lo: float, hi: float, target: int = 5) -> list[Tick]:
    """Round values between lo and hi."""
    if not (math.isfinite(lo) and math.isfinite(hi) and hi - lo > 1e-12 * max(abs(lo), abs(hi))):
        return []
    step = nice_step(hi - lo, target)
    first, last = math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [round(n * step, digits) + 0.0 for n in range(first, last + 1)]
    small = max(abs(lo), abs(hi)) < 1e4 and digits <= 4
    return [Tick(value, f"{value:,.{digits}f}" if small else short(value)) for value in values]


def short(value: float) -> str:
    """A number for an axis: 41.2k, 3M, 0.05."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size <= abs(value) < 1e15:
            unit = 1e3 if suffix == "k" else size
            return f"{value / unit:.4g}{suffix}"
    return number(value) if abs(value) >= 1000 else f"{value:.4g}"


def time_ticks(lo: float, hi: float, target: int = 9) -> list[Tick]:
    """Round UTC moments between lo and hi; the date stands under the first tick and wherever it changes."""
    span = hi - lo
    if not (math.isfinite(span) and span > 0):
        return []
    step: float = next((s for s in _TIME_STEPS if span / s <= target), 0)
    if not step:
        step = max(nice_step(span / _DAY, target), 1.0) * _DAY
    ticks: list[Tick] = []
    day = ""
    for n in range(math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9) + 1):
        if not is_time(n * step):  # rounding at the very end of the calendar
            continue
        moment = datetime.fromtimestamp(n * step, UTC)
        date = f"{_MONTHS[moment.month - 1]} {moment.day}"
        if step >= _DAY:
            year = str(moment.year)
            ticks.append(Tick(n * step, date, "" if year == day else year))
            day = year
            continue
        clock = f"{moment:%H:%M}" if step >= 60 else f"{moment:%H:%M:%S}"
        ticks.append(Tick(n * step, clock, "" if date == day else date))
        day = date
    return ticks


def thin(values: Sequence[float], limit: int) -> list[int]:
    """Which indices to keep so that at most `limit` remain: both ends, and the least and most of every bucket."""
    count = len(values)
    if count <= limit:
        return list(range(count))
    buckets = max((limit - 2) // 2, 1)
    keep = {0, count - 1}
    for bucket in range(buckets):
        span = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        keep.add(min(span, key=values.__getitem__))
        keep.add(max(span, key=values.__getitem__))
    return sorted(keep)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of the sorted values lies (nearest rank)."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def course_range(values: Sequence[float], from_zero: bool = False) -> tuple[float, float]:
    """The vertical span of a course: all but a few strays, at least a quarter of its level, from zero where near it.

    What lies outside is drawn at the edge; whoever draws says so.
    """
    ordered = sorted(value for value in values if drawable(value))
    if not ordered:
        return 0.0, 1.0
    low, high = quantile(ordered, 0.02), quantile(ordered, 0.98)
    span = max(high - low, 0.25 * max(abs(high), abs(low)), 1e-12)
    lo = max(ordered[0], low - 0.6 * span) - 0.08 * span
    hi = min(ordered[-1], high + 0.6 * span) + 0.08 * span
    if hi - lo < span:
        middle = 0.5 * (hi + lo)
        lo, hi = middle - 0.5 * span, middle + 0.5 * span
    return (0.0 if ordered[0] >= 0 and (from_zero or lo < 0.55 * hi) else lo), hi


def beyond(values: Sequence[float], low: float, high: float, unit: str, what: str) -> str:
    """What a scale does not show, in words: where it begins, and what lies at its edges."""

    def count(found: Sequence[float]) -> str:
        return f"{len(found):,} {what}s lie" if len(found) > 1 else f"One {what} lies"

    told = [f"The axis starts at {f'{number(low)} {unit}'.strip()}, not at zero."] if low > 0 else []
    if above := [value for value in values if value > high]:
        told.append(f"{count(above)} above it (▲), the highest {number(max(above))}.")
    if below := [value for value in values if value < low]:
        told.append(f"{count(below)} below it (▼), the lowest {number(min(below))}.")
    return " ".join(told)


def stretches(points: Sequence[Point | None]) -> list[list[Point]]:
    """The runs of points between gaps: a line across a gap would claim what nobody measured."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def line_path(points: Sequence[Point]) -> str:
    """An SVG path through the points."""
    return "".join(f"{'L' if i else 'M'}{px(x)} {px(y)}" for i, (x, y) in enumerate(points))


def area_path(points: Sequence[Point], base: float) -> str:
    """An SVG path of the surface between the points and a base line."""
    if not points:
        return ""
    return f"{line_path(points)}L{px(points[-1][0])} {px(base)}L{px(points[0][0])} {px(base)}Z"


def text_width(text: str, per_character: float = 6.9) -> float:
    """A careful guess of how wide a text is at 12 pixels: no font is measured here."""
    return sum(per_character if ord(character) < 0x2E80 else 2 * per_character for character in text)


def place_labels(labels: Sequence[Label], lo: float, hi: float, rows: int, gap: float = 6.0) -> list[Place | None]:
    """Put labels into rows above a plot, the most important first; None where no free place is left.

    What fits depends on the order of placing, so a few orders are tried: the one that places most of the four
    most important wins, then the one that places most labels, then the one in fewest rows.
    """
    given = range(len(labels))
    orders = (given, sorted(given, key=lambda i: -labels[i].x), sorted(given, key=lambda i: labels[i].x))
    tries = [_place_in_order(labels, order, lo, hi, rows, gap) for order in orders]

    def score(places: list[Place | None]) -> tuple[int, int, int]:
        placed = [place.row for place in places if place is not None]
        return sum(place is not None for place in places[:4]), len(placed), -max(placed, default=0)

    return max(tries, key=score)


def _place_in_order(
    labels: Sequence[Label], order: Sequence[int], lo: float, hi: float, rows: int, gap: float
) -> list[Place | None]:
    """Each label hangs on a vertical stem from its row down into the plot, so its place is free only if its text
    meets no other text and no stem, and its stem meets no text below."""
    texts: list[list[Point]] = [[] for _ in range(rows)]
    stems: list[tuple[float, int]] = []

    def free(row: int, start: float, end: float, x: float) -> bool:
        if start < lo or end > hi:
            return False
        if any(start < other_end + gap and other_start < end + gap for other_start, other_end in texts[row]):
            return False
        if any(at >= row and start - 2.5 * gap < stem < end + 2.5 * gap for stem, at in stems):
            return False
        if any(a - 2.5 * gap < x < b + 2.5 * gap for a, b in texts[row]):
            return False
        return not any(a - gap / 2 < x < b + gap / 2 for below in texts[:row] for a, b in below)

    places: list[Place | None] = [None] * len(labels)
    for i in order:
        x, width = labels[i].x, labels[i].width
        spots = [(row, left) for row in range(rows) for left in (False, True)]
        for row, left in spots:
            start = x - gap - width if left else x + gap
            if free(row, start, start + width, x):
                places[i] = Place(row, left)
                texts[row].append((start, start + width))
                stems.append((x, row))
                break
    return places
