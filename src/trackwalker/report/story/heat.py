"""Hosts x time: how far each host is from the others, as a small picture; thousands of hosts share its rows."""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trackwalker.diagnose.views.story import Lane, Story
from trackwalker.report import words
from trackwalker.report.charts import axis
from trackwalker.report.charts.host_lanes import common_domain
from trackwalker.report.charts.plots import Scale, px
from trackwalker.report.charts.png import encode_indexed
from trackwalker.report.text import clip, clip_middle, one_line
from trackwalker.stats.medians import known_row_medians

_NAMED = 40  # up to here every host has a row with its name; of more, this many most unlike the rest
_SHARED = 80  # rows for all others
_ROW, _THIN, _GAP = 13, 2, 6
_SHADES = 15
_ABOVE, _BELOW, _ABSENT = (213, 94, 0), (0, 114, 178), (128, 136, 147, 150)
# From fully below over nothing to fully above; what lies near the middle lets the page's own ground through.
_PALETTE = (
    _ABSENT,
    *((*_BELOW, 255 * k // _SHADES) for k in range(_SHADES, 0, -1)),
    (0, 0, 0, 0),
    *((*_ABOVE, 255 * k // _SHADES) for k in range(1, _SHADES + 1)),
)


Floats = npt.NDArray[np.floating[Any]]

# How far hosts are from each other: one measure for the map of the report and for that of the job's page.
_MOST_SPREADS = 1000.0
_LEAST_SHARE = 1 / 200  # of the value itself: a smaller difference is worth no colour
_LEAST_OF_LARGEST = 1 / 100
_OFTEN = 0.97  # of the time a host stays below what it does again and again
_FEWEST_HOSTS = 4  # fewer tell nothing of the usual host
_MOST_NOISE = 40.0  # spreads: where half of the hosts are hit, they are not noise
_FULL = 12.0  # spreads at which the colour is full, at least
_WORST, _WORST_LEAST = 0.05, 3  # of the columns decide the order: a phase counts, one odd sample does not


def _quantiles(values: Floats, *shares: float) -> list[Floats]:
    """Of the hosts that report at a time; numpy's own asks column by column."""
    ordered, last = np.sort(values, axis=0), np.maximum((~np.isnan(values)).sum(axis=0) - 1, 0)
    out = []
    for share in shares:
        at = (share * last).astype(np.intp)
        low, high = (np.take_along_axis(ordered, k[None], axis=0)[0] for k in (at, np.minimum(at + 1, last)))
        out.append(low + (high - low) * (share * last - at).astype(values.dtype))
    return out


def spread_of(values: Floats, least: float = 0.0) -> float:
    """How far hosts usually are from their median, and never less than what can be worth a colour."""
    if not values.size:
        return 1.0
    with _silent():
        median = known_row_medians(values.T)[None]
        apart = np.abs(values - median)
        spread = 1.4826 * float(np.nan_to_num(np.nanmedian(apart)))
        # Counters of trouble are zero nearly everywhere, and a setting is the same on all hosts: there the smallest
        # difference worth a colour is a share of the largest one or of the value itself, or a single event.
        largest = float(np.nan_to_num(np.nanmax(apart, initial=0.0)))
        level = float(np.nan_to_num(np.nanmedian(np.abs(median))))
    return max(spread, largest * _LEAST_OF_LARGEST, level * _LEAST_SHARE, least, 1e-12)


def measure(values: Floats, spread: float) -> tuple[Floats, Floats]:
    """The hosts' median at each time, and how far each is from it in units of the spread.

    Where all move at once, who was sampled a moment earlier is not unlike: what the median itself moves is taken off.
    """
    if not values.size:
        return values, values
    with _silent():
        median = known_row_medians(values.T)[None]
        moved = np.abs(np.nan_to_num(np.diff(median, axis=1, prepend=median[:, :1], append=median[:, -1:])))
        apart = values - median
        apart = np.sign(apart) * np.maximum(np.abs(apart) - np.maximum(moved[:, :-1], moved[:, 1:]), 0.0)
        deviation = np.clip(apart / spread, -_MOST_SPREADS, _MOST_SPREADS)
    return np.broadcast_to(median, values.shape), deviation.astype(values.dtype)


def noise_floor(deviation: Floats) -> float:
    """Spreads below which a cell is worth no colour: what so many cells reach by chance, and what most hosts reach.

    Few hosts are ever unlike the others: what the usual host does again and again is noise, however long its tails.
    """
    by_chance = max(3.0, math.sqrt(2.0 * math.log(max(deviation.size, 2))))
    if len(deviation) < _FEWEST_HOSTS or not deviation.size:
        return by_chance
    often = np.quantile(np.nan_to_num(np.abs(deviation), nan=0.0), _OFTEN, axis=1)
    return float(np.clip(1.1 * np.median(often), by_chance, _MOST_NOISE))


def full_colour(floor: float) -> float:
    """Spreads at which the colour is full."""
    return max(_FULL, 2.5 * floor)


def scores(deviation: Floats) -> npt.NDArray[np.float64]:
    """How unlike the others each host is in its worst stretch."""
    size = np.nan_to_num(np.abs(deviation), nan=0.0)
    few = min(size.shape[1], max(_WORST_LEAST, round(_WORST * size.shape[1])))
    worst: npt.NDArray[np.float64] = np.partition(size, size.shape[1] - few, axis=1)[:, -few:].mean(axis=1)
    return worst.astype(np.float64)


def furthest(deviation: Floats) -> npt.NDArray[np.intp]:
    """Of hosts that share a row, which is furthest at each time: an outlier does not vanish among many."""
    at: npt.NDArray[np.intp] = np.argmax(np.nan_to_num(np.abs(deviation), nan=-1.0), axis=0)
    return at


def band(values: Floats) -> tuple[Floats, Floats, Floats]:
    """What most hosts have at each time: 5 %, median and 95 % of them."""
    if not len(values):
        empty = np.full(values.shape[1], np.nan, values.dtype)
        return empty, empty, empty
    with _silent():
        low, middle, high = _quantiles(values, 0.05, 0.5, 0.95)
    return low, middle, high


@contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # a column in which nobody reported
        yield


# The host lanes of a story as one table, hosts x columns of the time axis: what a picture of many hosts is made of.
COLUMNS = 224  # four units of the drawing each


def cells(lanes: list[Lane], x: Scale) -> Floats:
    """The mean of every host in every column; NaN where nothing was recorded."""
    out = np.full((len(lanes), COLUMNS), np.nan)
    for i, lane in enumerate(lanes):
        size = min(len(lane.times), len(lane.values))
        times = np.array(lane.times[:size], np.float64)
        values = np.array([np.nan if v is None else v for v in lane.values[:size]], np.float64)
        good = np.isfinite(times) & np.isfinite(values) & (np.abs(values) < 1e150) & (times >= x.lo) & (times <= x.hi)
        at = ((times[good] - x.lo) / (x.hi - x.lo) * (COLUMNS - 1e-6)).astype(np.int64)
        count = np.bincount(at, minlength=COLUMNS)
        there = count > 0
        out[i, there] = np.bincount(at, values[good], COLUMNS)[there] / count[there]
        if len(at) > 1:  # fewer samples than columns: a sample stands for the time until the next one
            apart = float(np.median(np.diff(np.sort(times[good])))) / (x.hi - x.lo) * COLUMNS
            _fill(out[i], math.ceil(apart))
    return out


def _fill(row: Floats, apart: int) -> None:
    for _ in range(min(apart, COLUMNS) - 1):
        empty = np.isnan(row)
        empty[0] = False
        row[empty] = row[np.flatnonzero(empty) - 1]


@dataclass(frozen=True)
class Name:
    """The name beside a row."""

    y: int
    label: str
    host: str
    accused: bool


@dataclass(frozen=True)
class Strip:
    """A part of the picture: rows of one height."""

    y: int
    height: int
    image: str


@dataclass(frozen=True)
class Heat:
    """Everything the template draws; `sentence` alone where there is nothing to draw."""

    sentence: str = ""
    caption: tuple[str, ...] = ()
    height: int = 0
    bottom: int = 0
    row: int = _ROW
    ticks: tuple[axis.AxisTick, ...] = ()
    strips: tuple[Strip, ...] = ()
    names: tuple[Name, ...] = ()
    shared: tuple[int, str] | None = None  # where the shared rows begin, and what is said beside them
    onsets: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()


def build(story: Story) -> Heat:
    """Lay out the map of a story, or say in one sentence why there is none."""
    x = axis.time_scale(story)
    lanes = [lane for lane in story.lanes if lane.times]
    if x is None or len(lanes) < 2:
        return Heat(sentence="A map of hosts needs a metric of at least two hosts, and there is none.")
    values = cells(lanes, x)
    usual, deviation = measure(values, spread_of(values))
    if not np.isfinite(deviation).any():
        return Heat(sentence="No host has a value in this window, so there is no map to draw.")
    order, score = _order(lanes, deviation)
    floor = noise_floor(deviation)
    named = order if len(order) <= _NAMED + 8 else order[:_NAMED]
    rest = order[len(named) :]
    strips = [Strip(4, _ROW * len(named), _picture(deviation[named], floor))]
    bottom = 4 + _ROW * len(named)
    shared = None
    if rest:
        size = -(-len(rest) // _SHARED)
        groups = [_shared(deviation[rest[at : at + size]]) for at in range(0, len(rest), size)]
        strips.append(Strip(bottom + _GAP, _THIN * len(groups), _picture(np.array(groups), floor)))
        shared = (bottom + _GAP, f"{len(rest):,} others" + (f", {size} to a row" if size > 1 else ""))
        bottom += _GAP + _THIN * len(groups)
    domain = common_domain([one_line(lane.host) for lane in lanes])
    onsets = sorted({px(x(m.time)) for m in story.marks if m.kind == "onset" and axis.inside(x, m)}, key=float)
    return Heat(
        caption=tuple(_caption(story, len(named), len(rest))),
        height=max(bottom, (shared[0] + 14) if shared else 0) + 42,
        bottom=max(bottom, (shared[0] + 14) if shared else 0) + 4,
        ticks=tuple(axis.ticks(x)),
        strips=tuple(strips),
        names=tuple(_name(lanes[i], place, domain) for place, i in enumerate(named)),
        shared=shared,
        onsets=tuple(onsets[:40]),
        table=tuple(_told(lanes[i], i, values, usual, deviation, floor, x) for i in named[:24] if score[i] > 0),
    )


def _order(lanes: list[Lane], deviation: Floats) -> tuple[list[int], Floats]:
    """The accused first, then those that differ most from the others."""
    score = scores(deviation)
    keys = [(not lane.accused, -round(float(score[i]), 2), lane.host) for i, lane in enumerate(lanes)]
    return sorted(range(len(lanes)), key=keys.__getitem__), score


def _shared(deviation: Floats) -> Floats:
    row: Floats = deviation[furthest(deviation), np.arange(deviation.shape[1])]
    return row


def _picture(deviation: Floats, floor: float) -> str:
    """Colours as on the job's page: none within the noise, then quickly more."""
    calm = floor / full_colour(floor)
    size = np.clip((np.abs(deviation) / full_colour(floor) - calm) / (1.0 - calm), 0.0, 1.0) ** 0.65
    shade = np.rint(np.sign(deviation) * size * _SHADES) + _SHADES + 1
    pixels = np.where(np.isfinite(shade), shade, 0).astype(np.uint8)
    return f"data:image/png;base64,{base64.b64encode(encode_indexed(pixels, _PALETTE)).decode()}"


def _name(lane: Lane, place: int, domain: str) -> Name:
    host = one_line(lane.host)
    return Name(4 + _ROW * place, clip_middle(host.removesuffix(domain), 19), clip(host, 300), lane.accused)


def _told(
    lane: Lane, i: int, values: Floats, usual: Floats, deviation: Floats, floor: float, x: Scale
) -> tuple[str, ...]:
    """One host in numbers: where it is furthest from the others, and for how much of the time it is unlike them."""
    size: Any = np.nan_to_num(np.abs(deviation[i]), nan=-1.0)
    at = int(size.argmax())
    when = x.lo + (at + 0.5) * (x.hi - x.lo) / COLUMNS
    share = 100 * float((size > floor).mean())
    numbers = (words.number(float(values[i, at])), words.number(float(usual[i, at])))
    return (
        clip(one_line(lane.host), 300),
        "accused" if lane.accused else "",
        *numbers,
        words.utc(when),
        f"{share:.0f} %",
    )


def _caption(story: Story, named: int, rest: int) -> list[str]:
    metric = clip(one_line(story.lane_metric), 160) or "the deciding metric"
    notes = [
        f"{metric[0].upper()}{metric[1:]}, every host against the median of all hosts at the same time: "
        "orange is above, blue is below, grey is not recorded; no colour is alike, or apart as hosts are by chance."
    ]
    if rest:
        notes.append(
            f"The {named} rows with names are the suspects and those that differ most; "
            f"each thin row stands for hosts that are more alike and shows the furthest of them."
        )
    return notes
