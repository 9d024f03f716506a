"""Host lanes: one row per host on the timeline's axis, the accused first, gaps and early ends left empty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from trackwalker.diagnose.views.story import Lane, Story
from trackwalker.report import words
from trackwalker.report.charts import axis
from trackwalker.report.charts.axis import RIGHT
from trackwalker.report.charts.marks import words_of
from trackwalker.report.charts.plots import (
    Point,
    Scale,
    area_path,
    drawable,
    line_path,
    px,
    quantile,
    short,
    text_width,
    thin,
)
from trackwalker.report.text import clip, clip_middle, one_line

_ALL = 64  # up to here every host has its row
_DIFFERENT = 16
_POINTS = 6400  # over all rows: what keeps the page small
_GAPS = 1200


@dataclass(frozen=True)
class Row:
    """One host as drawn, and its numbers for the table."""

    host: str
    label: str
    accused: bool
    y: int
    height: int
    x: str
    width: str
    area: str
    line: str
    gaps: str
    ends: str  # "data ends 19:22:10" where the row stops early
    ends_x: str
    ends_anchor: str
    cap_x: str
    facts: tuple[str, ...]
    marks: tuple[tuple[str, str, str], ...]  # kind, column, title


@dataclass(frozen=True)
class Lanes:
    """Everything the template draws; `sentence` alone where there is nothing to draw."""

    sentence: str = ""
    caption: tuple[str, ...] = ()
    height: int = 0
    bottom: int = 0
    ticks: tuple[axis.AxisTick, ...] = ()
    rows: tuple[Row, ...] = ()
    onsets: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Track:
    """The samples of a lane that can be drawn, cut where nothing was recorded."""

    lane: Lane
    runs: list[list[Point]]

    @property
    def values(self) -> list[float]:
        return [value for run in self.runs for _, value in run]


def build(story: Story) -> Lanes:
    """Lay out the lanes of a story, or say in one sentence why there are none."""
    x = axis.time_scale(story)
    tracks = [_Track(lane, cut(lane, x)) for lane in story.lanes] if x is not None else []
    values = [value for track in tracks for value in track.values]
    if x is None or not values:
        what = "No host metric was recorded" if not story.lanes else "No host has a value in this window"
        return Lanes(sentence=f"{what}, so there are no host lanes to draw.")
    shown = choose(tracks, x)
    low, high = min(values), max(values)
    # From zero, unless that would press all of it into the upper part of a row.
    base = min(low - 0.15 * (high - low), 0.75 * high) if low > 0.6 * high or low < 0 else 0.0
    span = (base, high) if high > base else (base - 1, base + 1)
    domain = common_domain([one_line(track.lane.host) for track in tracks])
    rows: list[Row] = []
    top = 6
    for track in shown:
        height = 40 if track.lane.accused else 22 if len(shown) > 8 else 30
        rows.append(_row(story, track, x, span, top, height, len(shown), domain))
        top += height + 4
    onsets = sorted({px(x(m.time)) for m in story.marks if m.kind == "onset" and axis.inside(x, m)}, key=float)
    return Lanes(
        caption=tuple(_caption(story, tracks, shown, span)),
        height=top + 40,
        bottom=top + 2,
        ticks=tuple(axis.ticks(x)),
        rows=tuple(rows),
        onsets=tuple(onsets[:40]),
    )


def common_domain(hosts: list[str]) -> str:
    """The domain that all hosts share: the rows leave it out, because the names differ before it."""
    first, *others = hosts
    parts = first.split(".")
    for start in range(1, len(parts)):
        domain = "." + ".".join(parts[start:])
        # An address has no domain: its last numbers are what tells hosts apart.
        if others and not parts[start].isdigit() and all(host.endswith(domain) for host in others):
            return domain
    return ""


def cut(lane: Lane, x: Scale) -> list[list[Point]]:
    """The runs of recorded samples on the axis: a missing value, or a hole of four intervals, ends a run."""
    pairs = [(t, v) for t, v in zip(lane.times, lane.values, strict=False) if words.is_time(t) and x.lo <= t <= x.hi]
    pairs.sort(key=lambda pair: pair[0])
    steps = sorted(b[0] - a[0] for a, b in pairwise(pairs))
    hole = 4 * quantile(steps, 0.5) if steps else math.inf
    runs: list[list[Point]] = [[]]
    for time, value in pairs:
        if not drawable(value):
            runs.append([])
            continue
        if runs[-1] and time - runs[-1][-1][0] > hole > 0:
            runs.append([])
        runs[-1].append((time, value))
    return [run for run in runs if run]


def choose(tracks: list[_Track], x: Scale) -> list[_Track]:
    """The accused first, then the others; of a large job only the ones most unlike the rest."""
    accused = [track for track in tracks if track.lane.accused]
    others = [track for track in tracks if not track.lane.accused]
    if len(tracks) > _ALL:
        scores = difference(others, x)
        ranked = sorted(range(len(others)), key=lambda i: (-scores[i], i))[:_DIFFERENT]
        others = [others[i] for i in sorted(ranked)]
        accused = accused[: _ALL - len(others)]
    return accused + others


def difference(tracks: list[_Track], x: Scale, buckets: int = 48) -> list[float]:
    """How far each lane is from the median lane over time; a bucket that only this lane misses counts as well."""
    grid = Scale(x.lo, x.hi, 0, buckets - 1e-6)
    means: list[list[float | None]] = []
    for track in tracks:
        sums: list[list[float]] = [[] for _ in range(buckets)]
        for run in track.runs:
            for time, value in run:
                sums[int(grid(time))].append(value)
        means.append([math.fsum(column) / len(column) if column else None for column in sums])
    totals = [0.0] * len(tracks)
    for bucket in range(buckets):
        known = sorted(mean for row in means if (mean := row[bucket]) is not None)
        if 2 * len(known) <= len(tracks):
            continue
        middle = quantile(known, 0.5)
        # Scaled by the farthest lane, so that no single bucket decides alone.
        far = max(known[-1] - middle, middle - known[0]) or 1.0
        for i, row in enumerate(means):
            mean = row[bucket]
            totals[i] += 1.0 if mean is None else abs(mean - middle) / far
    return totals


def _row(
    story: Story, track: _Track, x: Scale, span: tuple[float, float], top: int, height: int, rows: int, domain: str
) -> Row:
    lane = track.lane
    runs, gaps = join_patches(track.runs, max(_GAPS // rows, 8))
    y = Scale(*span, top + height - 1.5, top + 2.5)
    limit = max(_POINTS // rows, 60) // max(len(runs), 1)
    area, line = "", ""
    for run in runs:
        kept = [run[k] for k in thin([value for _, value in run], max(limit, 4))]
        points = [(x(time), y(value)) for time, value in kept]
        if len(points) == 1:  # a lone sample is still a sample: give it a width the eye can find
            points = [(points[0][0] - 1, points[0][1]), (points[0][0] + 1, points[0][1])]
        area += area_path(points, top + height)
        line += line_path(points)
    holes = "".join(f"M{px(x(a))} {top}H{px(x(b))}V{top + height}H{px(x(a))}Z" for a, b in gaps)
    first, last = (runs[0][0][0], runs[-1][-1][0]) if runs else (x.lo, x.lo)
    ends = f"data ends {words.utc(last, date=False)}" if runs else "no data in this window"
    early = (x.hi - last) > 0.02 * (x.hi - x.lo)
    outside = text_width(ends, 6.2) + 14 < RIGHT - x(last)
    host = one_line(lane.host)
    marks = [m for m in story.marks if m.host == lane.host and m.kind != "checkpoint" and axis.inside(x, m)][:6]
    return Row(
        host=clip(host, 300),
        label=clip_middle(host.removesuffix(domain), 19),
        accused=lane.accused,
        y=top,
        height=height,
        x=px(x(first)),
        width=px(x(last) - x(first)),
        area=area,
        line=line,
        gaps=holes,
        ends=ends if early else "",
        ends_x=px(x(last) + (12 if outside else -8)),
        ends_anchor="start" if outside else "end",
        cap_x=px(x(last)),
        facts=_facts(track),
        marks=tuple((m.kind, px(x(m.time)), f"{clip(words_of(m), 60)}, {words.utc(m.time)} UTC") for m in marks),
    )


def _facts(track: _Track) -> tuple[str, ...]:
    values = sorted(track.values)
    if not values:
        return ("none", "none", "", "", "", "", "0")
    numbers = (values[0], quantile(values, 0.5), values[-1], track.runs[-1][-1][1])
    seen = (words.utc(track.runs[0][0][0]), words.utc(track.runs[-1][-1][0]))
    return (*seen, *(words.number(value) for value in numbers), str(len(track.runs) - 1))


def join_patches(runs: list[list[Point]], most: int) -> tuple[list[list[Point]], list[tuple[float, float]]]:
    """The runs to draw and the gaps to hatch; where gaps are too many to draw, a patchy stretch is hatched as one.

    Its samples are drawn as a line across the hatching, so neither what was seen nor what was missed is hidden.
    """
    gaps = [(a[-1][0], b[0][0]) for a, b in pairwise(runs)]
    if len(gaps) <= most:
        return runs, gaps
    widths = sorted((run[-1][0] - run[0][0] for run in runs[1:-1]), reverse=True)
    # Only runs longer than this stand alone; equal ones share one fate, or half a row would look different.
    alone = widths[max(most - 2, 0)]
    joined, hatched = [runs[0]], []
    patch: list[Point] = []
    for run in runs[1:]:
        if run is not runs[-1] and run[-1][0] - run[0][0] <= alone:
            patch.extend(run)
            continue
        hatched.append((joined[-1][-1][0], run[0][0]))
        joined.extend([patch, run] if patch else [run])
        patch = []
    return joined, hatched


def _caption(story: Story, tracks: list[_Track], shown: list[_Track], span: tuple[float, float]) -> list[str]:
    metric = one_line(story.lane_metric)
    what = clip(metric, 160) if metric else "the deciding metric"
    notes = [
        f"Every row shows {what} from {short(span[0])} to {short(span[1])}.",
        "Hatching or an early end means that samples are missing there.",
    ]
    if hidden := len(tracks) - len(shown):
        left_out = sum(track.lane.accused for track in tracks) - sum(track.lane.accused for track in shown)
        also = f" ({left_out:,} of them suspect)" if left_out else ""
        notes.append(
            f"{len(shown):,} of {len(tracks):,} hosts are shown: the suspects and the {_DIFFERENT} that differ most "
            f"from the rest; {hidden:,} are hidden{also}."
        )
    return notes
