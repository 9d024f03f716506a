"""When each step ended and how long it took, from the best source the job has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trackwalker.logs.facts import LogFacts
from trackwalker.logs.scanning.stamps import durations, spread
from trackwalker.record.journal import NAME as JOURNAL
from trackwalker.record.journal import Pause
from trackwalker.record.masks import Masks, masks, row_seconds, stands_for
from trackwalker.record.steps import LOG, StepTable
from trackwalker.stats.medians import known_median, quantile
from trackwalker.stats.segments import running_median

if TYPE_CHECKING:  # a log is read without the client of a database
    from trackwalker.telemetry.client import Telemetry

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_HIDDEN_SHARE = 0.05  # of a step, spent between steps and told by no step line
SLACK_S = 60.0  # clocks of one cluster
_HIDDEN_STEPS = 9  # in a row or nearly: a save or an evaluation is one long gap
_SIGHTINGS = 20  # that bound the end of a step: of so many, one in 20 comes within a twentieth of the scrape interval
_GRAINS = 2.0  # the first and the last end of a stretch are each known to one


@dataclass(frozen=True)
class Timeline:
    """Steps in order. `exact` says whether the end times were recorded or only reckoned from durations."""

    steps: Ints
    ends: Floats
    seconds: Floats
    tgs: Floats
    exact: bool
    source: str

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last_end(self) -> float | None:
        """When the last step ended."""
        return float(self.ends[-1]) if len(self) and np.isfinite(self.ends[-1]) else None

    def between(self, first: int, last: int) -> NDArray[np.bool_]:
        """Which steps lie between two, both included."""
        return (self.steps >= first) & (self.steps <= last)

    def step_at(self, time: float) -> int | None:
        """The step that was running at a time; where the clock lets two steps overlap, the later."""
        if not len(self):
            return None
        at = int(np.searchsorted(self.ends, time, side="right"))
        if at + 1 < len(self) and self.ends[at + 1] - self.seconds[at + 1] <= time:
            at += 1
        return int(self.steps[at]) if at < len(self) else int(self.steps[-1]) + 1


def timeline_of(
    table: StepTable, log: LogFacts, telemetry: Telemetry | None = None, start: float | None = None
) -> Timeline | None:
    """The course of a run from its table of steps: a step has ended when its slowest rank has.

    Times come from the ranks' journal, else from recorded training scalars, else from the lines' own times; without
    any they are reckoned from the job's start, where that is known.
    """
    rows = table.once()
    if table.source != JOURNAL:
        rows = rows.lead()
        rows = rows.take(np.isfinite(rows.seconds))
    if not len(rows):
        return None
    # One row for each step: the journal has one for each rank.
    if not (np.diff(rows.step) >= 0).all():
        rows = rows.take(np.argsort(rows.step, kind="stable"))
    first = np.flatnonzero(np.diff(rows.step, prepend=rows.step[0] - 1))
    alone = len(first) == len(rows)  # a long run's columns are large: nothing is copied that stays as it is
    step = rows.step if alone else rows.step[first]
    ends = np.fmax.reduceat(rows.column("end"), first) if table.clock == JOURNAL else None
    seconds, tgs = _medians(rows.seconds, first), _medians(rows.tgs, first)
    if ends is not None and not np.isfinite(seconds).all():
        seconds = _apart(step, seconds, ends, tgs)
        ends = spread(ends, seconds)
    written = rows.column("written")
    written = written if alone else written[np.append(first[1:], len(rows)) - 1]
    source = log.path.name if table.source == LOG else table.source or log.path.name
    known = {int(s): float(e) for s, e in zip(step, ends, strict=True) if np.isfinite(e)} if ends is not None else {}
    anchors = known or _anchors(telemetry)
    timeline = _timed(step, seconds, tgs, log, anchors, bool(known), start, source)
    if timeline.exact or not _plausible(written, log, telemetry, start):
        return timeline
    return replace(timeline, ends=written, exact=True)


def mark(timeline: Timeline | None, log: LogFacts, pauses: Iterable[Pause] = (), restarts: Iterable[int] = ()) -> Masks:
    """The masks of a course: what the log tells of between two steps lengthened the second."""
    if timeline is None:
        return masks(np.zeros(0, np.int64), np.zeros(0), log)
    if np.array_equal(log.steps.step, timeline.steps):
        known = log.steps.line.astype(float)
    else:  # of a step done again the later counts
        lines = dict(zip(log.steps.step.tolist(), log.steps.line.tolist(), strict=True))
        known = np.array([lines.get(s, np.nan) for s in timeline.steps.tolist()], float)
    return masks(
        timeline.steps, timeline.seconds, log, line=known,
        end=timeline.ends if timeline.exact else None, pauses=pauses, restarts=restarts,
    )  # fmt: skip


def _medians(values: Floats, first: Ints) -> Floats:
    """The median of each group of values, which begin at these places; NaN only where a group has nothing else."""
    if len(first) == len(values):
        return values
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(values))))
    ordered = values[np.lexsort((values, group))]  # NaN last in each group
    known = np.add.reduceat(np.isfinite(values).astype(np.int64), first)
    low, high = first + np.maximum(known - 1, 0) // 2, first + known // 2
    middle = 0.5 * (ordered[low] + ordered[np.minimum(high, len(values) - 1)])
    return np.where(known > 0, middle, np.nan)


def _apart(step: Ints, seconds: Floats, ends: Floats, tgs: Floats) -> Floats:
    """A trainer that does not say how long a step took is timed by when its steps ended, and by its rates."""
    spacing = durations(step, ends, tgs)
    usual = known_median(spacing) if np.isfinite(spacing).any() else 0.0
    spacing = np.where(np.isfinite(spacing), spacing, usual)
    return np.where(np.isfinite(seconds), seconds, spacing)


def _plausible(written: Floats, log: LogFacts, telemetry: Telemetry | None, start: float | None) -> bool:
    """Whether the lines' own times can be UTC: in order, and all inside the job; another zone's would lie outside."""
    if start is None or not len(written) or not np.isfinite(written).all() or (np.diff(written) < 0).any():
        return False
    wall = log.summary.wall_s if log.summary is not None else None
    end = start + wall if wall is not None else telemetry.range()[1] if telemetry is not None else None
    return end is not None and bool(start - SLACK_S <= written[0] and written[-1] <= end + SLACK_S)


def from_scalars(telemetry: Telemetry) -> Timeline | None:
    """From recorded training scalars alone, where no log tells of any step."""
    anchors = _anchors(telemetry)
    if len(anchors) < _HIDDEN_STEPS:
        return None
    order = sorted(anchors)
    ends = np.array([anchors[s] for s in order])
    spacing = np.diff(ends, prepend=np.nan) / np.diff(
        order, prepend=order[0] - 1
    )  # where steps are missing, their mean
    spacing[0] = spacing[1]
    took = by_time(telemetry, "tb_perf_step_time_seconds")
    tgs = by_time(telemetry, "tb_perf_per_device_tokens_per_sec")
    seconds = np.array([took.get(round(anchors[s], 3), spacing[i]) for i, s in enumerate(order)])
    speed = np.array([tgs.get(round(anchors[s], 3), np.nan) for s in order])
    return _with_hidden_time(Timeline(np.array(order), ends, seconds, speed, True, "tb_step"))


def by_time(telemetry: Telemetry, metric: str) -> dict[float, float]:
    """A scalar by the time of its step."""
    if metric not in telemetry.metrics():
        return {}
    begin, end = telemetry.range()
    return {
        round(float(t), 3): float(v)
        for _, times, values in telemetry.raw(metric, begin, end)
        for t, v in zip(times, values, strict=True)
    }


def _timed(
    order: Ints,
    seconds: Floats,
    tgs: Floats,
    log: LogFacts,
    anchors: dict[int, float],
    stamped: bool,
    start: float | None,
    source: str,
) -> Timeline:
    known = [(i, anchors[s]) for i, s in enumerate(order.tolist()) if s in anchors] if anchors else []
    ends, grain = np.full(len(order), np.nan), 0.0
    elapsed = np.cumsum(row_seconds(order, seconds))
    if known:
        # Between two recorded steps the durations tell the time; each step hangs on the last recorded one before it.
        at = np.array([i for i, _ in known])
        late = np.array([t for _, t in known]) - elapsed[at]
        if not stamped:
            late, grain = _lateness(late)
        ends = elapsed + late[np.maximum(np.searchsorted(at, np.arange(len(order)), side="right") - 1, 0)]
    elif start is not None:
        setup = sum(s.seconds or 0 for s in log.stages if s.what == "END" and s.name != "Training")
        ends = start + setup + elapsed
    timeline = Timeline(order, ends, seconds, tgs, bool(known), source)
    return _with_hidden_time(timeline, grain) if known else timeline


def _lateness(seen: Floats) -> tuple[Floats, float]:
    """How far each recorded step lies behind the sum of the durations, and how well that is known.

    Steps cannot end sooner after each other than they took. A recorder that stamps each step never shows that; a gauge
    that is scraped shows a step some time after its end, and the sightings that follow bound how long after.
    """
    ahead = np.concatenate([seen, np.full(_SIGHTINGS - 1, np.inf)])
    least = np.lib.stride_tricks.sliding_window_view(ahead, _SIGHTINGS).min(axis=1)
    return least, quantile(seen - least, 0.9)


def _with_hidden_time(timeline: Timeline, grain: float = 0.0) -> Timeline:
    """Where steps keep coming later than their own durations say, what they really took.

    A trainer that times the step alone prints normal lines while every step waits for data. Ends known to `grain`
    seconds only show what is more than that in all.
    """
    if len(timeline) < _HIDDEN_STEPS:
        return timeline
    spacing = np.diff(timeline.ends, prepend=timeline.ends[0] - timeline.seconds[0])
    spacing /= stands_for(timeline.steps)  # of each step of a row
    hidden = running_median(spacing - timeline.seconds, _HIDDEN_STEPS)
    lasting = (hidden > _HIDDEN_SHARE * timeline.seconds) & (spacing > timeline.seconds)
    if grain and float((spacing - timeline.seconds)[lasting].sum()) <= _GRAINS * grain:
        return timeline
    seconds = np.where(lasting, spacing, timeline.seconds)
    return replace(timeline, seconds=seconds, tgs=timeline.tgs * timeline.seconds / np.maximum(seconds, 1e-9))


def _anchors(telemetry: Telemetry | None) -> dict[int, float]:
    """Step to the time at which it was first seen to be over; synthetic fill samples are left out.

    A gauge goes on showing the last step of a run that has become silent: that is no progress.
    """
    if telemetry is None or "tb_step" not in telemetry.metrics():
        return {}
    begin, end = telemetry.range()
    fills: dict[str, list[float]] = {}
    if "tb_metrics_plugin_staleness_fill" in telemetry.metrics():
        for labels, times, values in telemetry.raw("tb_metrics_plugin_staleness_fill", begin, end):
            fills.setdefault(labels.get("host", ""), []).extend(times[values != 0].tolist())
    anchors: dict[int, float] = {}
    for labels, times, values in telemetry.raw("tb_step", begin, end):
        own = ~np.isin(times, fills.get(labels.get("host", ""), []))
        times, values = times[own], values[own]
        new = np.diff(values, prepend=np.nan) != 0
        for t, v in zip(times[new].tolist(), values[new].tolist(), strict=True):
            anchors[int(v)] = max(anchors.get(int(v), 0.0), t)  # of a step done again the later counts
    return anchors
