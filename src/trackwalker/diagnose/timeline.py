"""When each step ended and how long it took, from the best source the job has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.sources import StepRecord
from trackwalker.logs.facts import LogFacts
from trackwalker.stats.segments import running_median
from trackwalker.telemetry.store import Telemetry

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_HIDDEN_SHARE = 0.05  # of a step, spent between steps and told by no step line
SLACK_S = 60.0  # clocks of one cluster
_HIDDEN_STEPS = 9  # in a row or nearly: a save or an evaluation is one long gap


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
        """The step that was running at a time."""
        if not len(self):
            return None
        at = int(np.searchsorted(self.ends, time, side="right"))
        return int(self.steps[at]) if at < len(self) else int(self.steps[-1]) + 1


def from_progress(records: list[dict[str, Any]], last_attempt: float = 0.0) -> Timeline | None:
    """From progress.jsonl: a step has ended when its slowest rank has."""
    ends: dict[int, float] = {}
    seconds: dict[int, list[float]] = {}
    tgs: dict[int, float] = {}
    for record in records:
        try:
            if record.get("phase") != "train" or float(record["t"]) < last_attempt:
                continue
            step = int(record["step"])
            ends[step] = max(ends.get(step, 0.0), float(record["t"]))
            if record.get("seconds") is not None:
                seconds.setdefault(step, []).append(float(record["seconds"]))
            if record.get("tokens_per_s") is not None:
                tgs[step] = float(record["tokens_per_s"])
        except (KeyError, TypeError, ValueError):
            continue
    if not ends:
        return None
    order = sorted(ends)
    # A trainer that does not say how long a step took is timed by when its steps ended.
    apart = {s: ends[s] - ends[before] for before, s in pairwise(order)}
    apart[order[0]] = float(np.median(list(apart.values()))) if apart else 0.0
    return _with_hidden_time(
        Timeline(
            np.array(order),
            np.array([ends[s] for s in order]),
            np.array([float(np.median(seconds.get(s, [apart[s]]))) for s in order]),
            np.array([tgs.get(s, np.nan) for s in order]),
            True,
            "progress.jsonl",
        )
    )


def from_log(log: LogFacts, telemetry: Telemetry | None, start: float | None) -> Timeline | None:
    """From step lines; their times come from recorded training scalars, else they are reckoned from the job's start."""
    rank = log.best_rank
    if rank is None:
        return None
    lines = {line.step: line for line in log.steps[rank]}  # a repeated step: the later attempt counts
    order = sorted(lines)
    seconds = np.array([lines[s].seconds for s in order])
    tgs = np.array([np.nan if (v := lines[s].tgs) is None else v for s in order])
    return _timed(order, seconds, tgs, log, telemetry, start, log.path.name)


def from_record(record: StepRecord, log: LogFacts, telemetry: Telemetry | None, start: float | None) -> Timeline | None:
    """From the workers' own files or the event file, where the merged log stopped before the run did."""
    known = {int(s): i for i, s in enumerate(record.step) if np.isfinite(record.seconds[i])}
    order = sorted(known)
    if not order:
        return None
    at = [known[s] for s in order]
    source = record.used or log.path.name
    timeline = _timed(order, record.seconds[at], record.tgs[at], log, telemetry, start, source)
    if timeline.exact or record.written is None:
        return timeline
    written = record.written[at]
    return replace(timeline, ends=written, exact=True) if _plausible(written, log, telemetry, start) else timeline


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
    took = _by_time(telemetry, "tb_perf_step_time_seconds")
    tgs = _by_time(telemetry, "tb_perf_per_device_tokens_per_sec")
    seconds = np.array([took.get(round(anchors[s], 3), spacing[i]) for i, s in enumerate(order)])
    speed = np.array([tgs.get(round(anchors[s], 3), np.nan) for s in order])
    return _with_hidden_time(Timeline(np.array(order), ends, seconds, speed, True, "tb_step"))


def _by_time(telemetry: Telemetry, metric: str) -> dict[float, float]:
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
    order: list[int],
    seconds: Floats,
    tgs: Floats,
    log: LogFacts,
    telemetry: Telemetry | None,
    start: float | None,
    source: str,
) -> Timeline:
    anchors = _anchors(telemetry) if telemetry else {}
    known = [(i, anchors[s]) for i, s in enumerate(order) if s in anchors]
    ends = np.full(len(order), np.nan)
    elapsed = np.cumsum(seconds)
    if known:
        # Between two recorded steps the durations tell the time; each step hangs on the last recorded one before it.
        first = known[0]
        ends[: first[0] + 1] = first[1] - (elapsed[first[0]] - elapsed[: first[0] + 1])
        for (i, t), nxt in zip(known, [*known[1:], (len(order), 0.0)], strict=True):
            ends[i : nxt[0]] = t + (elapsed[i : nxt[0]] - elapsed[i])
    elif start is not None:
        setup = sum(s.seconds or 0 for s in log.stages if s.what == "END" and s.name != "Training")
        ends = start + setup + elapsed
    timeline = Timeline(np.array(order), ends, seconds, tgs, bool(known), source)
    return _with_hidden_time(timeline) if known else timeline


def _with_hidden_time(timeline: Timeline) -> Timeline:
    """Where steps keep coming later than their own durations say, what they really took.

    A trainer that times the step alone prints normal lines while every step waits for data.
    """
    if len(timeline) < _HIDDEN_STEPS:
        return timeline
    spacing = np.diff(timeline.ends, prepend=timeline.ends[0] - timeline.seconds[0])
    hidden = running_median(spacing - timeline.seconds, _HIDDEN_STEPS)
    lasting = (hidden > _HIDDEN_SHARE * timeline.seconds) & (spacing > timeline.seconds)
    seconds = np.where(lasting, spacing, timeline.seconds)
    return replace(timeline, seconds=seconds, tgs=timeline.tgs * timeline.seconds / np.maximum(seconds, 1e-9))


def _anchors(telemetry: Telemetry) -> dict[int, float]:
    """Step to recorded end time; synthetic fill samples are left out."""
    begin, end = telemetry.range()
    fills: set[tuple[str, float]] = set()
    if "tb_metrics_plugin_staleness_fill" in telemetry.metrics():
        for labels, times, values in telemetry.raw("tb_metrics_plugin_staleness_fill", begin, end):
            fills |= {(labels.get("host", ""), float(t)) for t, v in zip(times, values, strict=True) if v != 0}
    anchors: dict[int, float] = {}
    if "tb_step" in telemetry.metrics():
        for labels, times, values in telemetry.raw("tb_step", begin, end):
            for t, v in zip(times, values, strict=True):
                if (labels.get("host", ""), float(t)) not in fills:
                    anchors[int(v)] = max(anchors.get(int(v), 0.0), float(t))
    return anchors
