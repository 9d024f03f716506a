"""Suspect hosts against the others: their own lines over the median and the 5-95 % band of everybody else."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from trackwalker.diagnose.views.story import Lane, Story
from trackwalker.report import words
from trackwalker.report.charts import axis
from trackwalker.report.charts.host_lanes import cut
from trackwalker.report.charts.plots import Scale, line_path, px, thin, value_ticks
from trackwalker.report.story.heat import COLUMNS, band, cells
from trackwalker.report.text import clip, one_line

_LINES = 6
_HEIGHT, _LEGEND = 180, 20
_TOLD = 24  # rows of the table


@dataclass(frozen=True)
class Drawn:
    """One accused host."""

    host: str
    path: str
    dash: str
    legend_x: int
    legend_y: int


@dataclass(frozen=True)
class Overlay:
    """Everything the template draws; `sentence` alone where there is nothing to draw."""

    sentence: str = ""
    caption: tuple[str, ...] = ()
    height: int = 0
    top: int = 0
    bottom: int = 0
    ticks: tuple[axis.AxisTick, ...] = ()
    levels: tuple[tuple[str, str], ...] = ()
    band: str = ""
    median: str = ""
    lines: tuple[Drawn, ...] = ()
    onsets: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class _Column:
    time: float
    low: float
    middle: float
    high: float


def build(story: Story) -> Overlay:
    """Lay out the overlay of a story, or say in one sentence why there is none."""
    x = axis.time_scale(story)
    accused = [lane for lane in story.lanes if lane.accused]
    others = [lane for lane in story.lanes if not lane.accused]
    if x is None or not accused or not others:
        return Overlay(sentence="There are not both suspect and other hosts with a recorded metric to compare.")
    control = _control(others, x)
    tracks = [(lane, cut(lane, x)) for lane in accused[:_LINES]]
    values = [value for _, runs in tracks for run in runs for _, value in run]
    values += [edge for column in control for edge in (column.low, column.high)]
    if not control or not values:
        return Overlay(sentence="No host has a value in this window, so there is nothing to compare.")
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or max(abs(high) * 0.1, 1.0)
    lo = 0.0 if 0 <= low < 0.4 * high else low - pad
    top = 8 + _LEGEND * (1 + len(tracks) // 3)
    bottom = top + _HEIGHT
    y = Scale(lo, high + pad, bottom, top)
    onsets = sorted({px(x(m.time)) for m in story.marks if m.kind == "onset" and axis.inside(x, m)}, key=float)
    return Overlay(
        caption=tuple(_caption(story, len(accused), len(others))),
        height=bottom + 42,
        top=top,
        bottom=bottom,
        ticks=tuple(axis.ticks(x)),
        levels=tuple((px(y(tick.value)), tick.label) for tick in value_ticks(lo, high + pad)),
        band="".join(_band(run, x, y) for run in _unbroken(control, x)),
        median="".join(line_path([(x(c.time), y(c.middle)) for c in run]) for run in _unbroken(control, x)),
        lines=tuple(_line(i, lane, runs, x, y) for i, (lane, runs) in enumerate(tracks)),
        onsets=tuple(onsets[:40]),
        table=tuple(_table(tracks, control)),
    )


def _control(lanes: list[Lane], x: Scale) -> list[_Column]:
    """What the others did: 5 %, median and 95 % of them in every column."""
    edges = np.array(band(cells(lanes, x)))
    width = (x.hi - x.lo) / COLUMNS
    there = np.flatnonzero(np.isfinite(edges[1]))
    return [_Column(x.lo + (i + 0.5) * width, *(float(edge) for edge in edges[:, i])) for i in there.tolist()]


def _unbroken(control: list[_Column], x: Scale) -> list[list[_Column]]:
    """Stretches of columns that follow each other: where nobody reported, nothing is drawn."""
    width = (x.hi - x.lo) / COLUMNS
    places = [(round((column.time - x.lo) / width - 0.5), column) for column in control]
    groups = groupby(enumerate(places), key=lambda item: item[1][0] - item[0])
    return [[column for _, (_, column) in group] for _, group in groups]


def _band(run: list[_Column], x: Scale, y: Scale) -> str:
    there = [(x(c.time), y(c.high)) for c in run]
    back = [(x(c.time), y(c.low)) for c in reversed(run)]
    return line_path([*there, *back]) + "Z" if len(run) > 1 else ""


def _line(i: int, lane: Lane, runs: list[list[tuple[float, float]]], x: Scale, y: Scale) -> Drawn:
    path = ""
    for run in runs:
        kept = [run[k] for k in thin([value for _, value in run], max(600 // len(runs), 4))]
        path += line_path([(x(time), y(value)) for time, value in kept])
    dash = ("", "7 3", "2 3", "10 3 2 3", "5 5", "1 4")[i]
    place = i + 1  # the first entry of the legend is the others'
    return Drawn(clip(one_line(lane.host), 34), path, dash, axis.LEFT + 300 * (place % 3), 14 + _LEGEND * (place // 3))


def _table(tracks: list[tuple[Lane, list[list[tuple[float, float]]]]], control: list[_Column]) -> list[tuple[str, ...]]:
    points = [sorted(point for run in runs for point in run) for _, runs in tracks]
    rows = []
    for column in control[:: max(1, len(control) // _TOLD)][: _TOLD + 1]:
        near = [min(each, key=lambda p: abs(p[0] - column.time))[1] if each else None for each in points]
        told = ["" if value is None else words.number(value) for value in near]
        band = (words.number(value) for value in (column.low, column.middle, column.high))
        rows.append((words.utc(column.time), *told, *band))
    return rows


def _caption(story: Story, accused: int, others: int) -> list[str]:
    metric = clip(one_line(story.lane_metric), 160) or "the deciding metric"
    what = "host" if others == 1 else "hosts"
    band = f"The band holds 90 % of the {others:,} other {what}, the dotted line is their median."
    notes = [f"{metric[0].upper()}{metric[1:]}. {band}"]
    if accused > _LINES:
        notes.append(f"{_LINES} of {accused:,} suspect hosts are drawn.")
    return notes
