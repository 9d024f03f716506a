"""Plot geometry as pure functions: scales, ticks, thinning, paths and labels that do not collide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeGuard

from trackwalker.report.words import number

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
    return [Tick(n * step, short(round(n * step, digits))) for n in range(first, last + 1)]


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
    """Put labels into rows above a plot, in order of importance; None where no free place is left.

    Each label hangs on a vertical line from its row down into the plot, so a place is free only if its text
    meets no other text, and no line runs through any text.
    """
    texts: list[list[Point]] = [[] for _ in range(rows)]
    stems: list[tuple[float, int]] = []

    def free(row: int, start: float, end: float, x: float) -> bool:
        if start < lo or end > hi:
            return False
        if any(start < other_end + gap and other_start < end + gap for other_start, other_end in texts[row]):
            return False
        if any(above > row and start - 2 < stem < end + 2 for stem, above in stems):
            return False
        return not any(a - 2 < x < b + 2 for below in texts[:row] for a, b in below)

    places: list[Place | None] = []
    for label in labels:
        found: Place | None = None
        for row in range(rows):
            for left in (False, True):
                start = label.x - gap - label.width if left else label.x + gap
                if found is None and free(row, start, start + label.width, label.x):
                    found = Place(row, left)
                    texts[row].append((start, start + label.width))
                    stems.append((label.x, row))
        places.append(found)
    return places
