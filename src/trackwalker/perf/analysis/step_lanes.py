"""One traced step as lanes for a drawing: what each device did, and what ran on each of its streams.

A step may have a hundred thousand kernels. A lane keeps at most a few thousand bars: long kernels stay as they are,
short neighbours become one bar that says how many they are and how much of it they fill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trackwalker.errors import TrackwalkerError
from trackwalker.perf.analysis.detail import views
from trackwalker.perf.analysis.device_view import DeviceView
from trackwalker.perf.analysis.result import DeviceRow, TracePart, short_path
from trackwalker.perf.analysis.step_buckets import Timeline
from trackwalker.perf.formats.model import PS_PER_NS, PS_PER_S, Int64, Step

STATES = ("compute", "exposed_comm", "copy", "host_gap", "idle")  # what a device does, as the buckets name it
_MOST_DEVICES = 8
_MOST_STREAMS = 6  # of one device; a CPU device has a thread for every core
_MOST_BARS = 24_000  # on the whole page
_MOST_BYTES = 2 << 30  # of trace files that are read for the drawing


@dataclass
class Lane:
    """Bars of one row, sorted by start; times in nanoseconds from the beginning of the drawing."""

    title: str
    start: Int64
    length: Int64
    name: list[str]  # of each bar: what took most of it
    kind: list[str]
    count: Int64  # kernels in it
    busy: Int64  # nanoseconds of the bar that they fill


@dataclass
class DeviceLanes:
    """One device: what it did, and its streams."""

    device: str
    step: int | None
    state: Lane
    streams: list[Lane]
    more_streams: int = 0  # that did least and are not drawn


@dataclass
class StepLanes:
    """One step on several devices, on one clock."""

    devices: list[DeviceLanes] = field(default_factory=list)
    span_ns: int = 0
    left_out: list[str] = field(default_factory=list)  # what is not drawn, and why


def step_lanes(part: TracePart) -> StepLanes:
    """The step of middle length on the devices that tell most: those that are waited for, then the first ones."""
    out = StepLanes()
    place = _middle(part.step_samples)
    chosen = _chosen(part, out)
    raw: list[tuple[DeviceRow, DeviceView, Step]] = []
    for file, rows in chosen.items():
        try:
            raw += _steps(file, rows, place, raw[0][2].number if raw else None)
        except TrackwalkerError as e:
            out.left_out.append(f"{file.name}: {e}")
        except Exception as e:  # a trace may hold anything; the rest of the page stands
            out.left_out.append(f"{file.name}: {type(e).__name__}: {e}")
    if not raw:
        return out
    begin = min(step.start + _clock(row) for row, _, step in raw)
    out.span_ns = max(step.end + _clock(row) - begin for row, _, step in raw) // PS_PER_NS
    for row, seen, step in raw:
        out.devices.append(_device(row, seen, step, begin - _clock(row), _MOST_BARS // len(raw)))
    order = [row.device for row in part.devices]
    out.devices.sort(key=lambda made: order.index(made.device))
    return out


def _clock(row: DeviceRow) -> int:
    return round(row.clock_s * PS_PER_S)


def _middle(samples: Sequence[float]) -> int:
    """The place of the step of middle length."""
    return int(np.argsort(samples)[(len(samples) - 1) // 2]) if samples else 0


def _chosen(part: TracePart, out: StepLanes) -> dict[Path, list[DeviceRow]]:
    """Files to read, each with the devices to draw."""
    late = {row.device: n for n, row in enumerate(part.stragglers)}
    ranked = sorted(part.devices, key=lambda row: late.get(row.device, len(late)))
    files = {Path(file).name: Path(file) for file in part.files}
    chosen: dict[Path, list[DeviceRow]] = {}
    size, drawn = 0, 0
    for row in ranked:
        path = files.get(row.file)
        if path is None or drawn == _MOST_DEVICES:
            continue
        if path not in chosen:
            size += path.stat().st_size if path.exists() else 0
            if chosen and size > _MOST_BYTES:
                continue
        chosen.setdefault(path, []).append(row)
        drawn += 1
    if drawn < len(part.devices):
        out.left_out.append(f"{drawn} of {len(part.devices)} devices are drawn, those that are waited for first")
    return chosen


def _steps(
    path: Path, rows: list[DeviceRow], place: int, number: int | None
) -> Iterator[tuple[DeviceRow, DeviceView, Step]]:
    _, seen, _ = views(path)
    wanted = {row.device: row for row in rows}
    for view in seen:
        row = next((r for name, r in wanted.items() if name.endswith(f" {view.device.kind} {view.device.id}")), None)
        if row is None or not view.steps:
            continue
        same = [step for step in view.steps if number is not None and step.number == number]
        yield row, view, same[0] if same else view.steps[min(place, len(view.steps) - 1)]


def _device(row: DeviceRow, seen: DeviceView, step: Step, origin: int, most: int) -> DeviceLanes:
    kernels = seen.device.kernels
    inside = np.flatnonzero((kernels.end > step.start) & (kernels.start < step.end) & (kernels.end > kernels.start))
    used, place = np.unique(kernels.stream[inside], return_inverse=True)
    spent = np.bincount(place, (kernels.end - kernels.start)[inside], len(used))
    lanes = []
    for stream in np.sort(used[np.argsort(-spent)[:_MOST_STREAMS]]):
        rows = inside[kernels.stream[inside] == stream]
        share = max(most * len(rows) // max(len(inside), 1), 200)
        lanes.append(_stream(seen, rows, int(stream), step, origin, share))
    state = _state(seen.line, step, origin, max(most // 3, 200))
    return DeviceLanes(row.device, step.number, state, lanes, max(len(used) - _MOST_STREAMS, 0))


def _stream(seen: DeviceView, rows: Int64, stream: int, step: Step, origin: int, most: int) -> Lane:
    kernels, strings = seen.device.kernels, seen.trace.strings
    start = np.maximum(kernels.start[rows], step.start) - origin
    end = np.minimum(kernels.end[rows], step.end) - origin
    bars = merge(start, end, step.span, most)
    name = []
    for row in rows[bars.largest]:
        path, kernel = strings[int(seen.origins.path[row])], strings[int(kernels.name[row])]
        name.append(f"{short_path(path)} ({kernel})" if path else kernel)
    kind = [seen.classes.names[int(seen.classes.number[row])] for row in rows[bars.largest]]
    title = seen.device.streams.get(stream, f"stream {stream}")
    return Lane(title, bars.start, bars.length, name, kind, bars.count, bars.busy)


def _state(line: Timeline, step: Step, origin: int, most: int) -> Lane:
    """What the device did at each moment, by the rule of the buckets."""
    sets = (line.compute, line.compute_or_comm, line.busy, line.host_gaps)
    clipped = [one.clip(step.start, step.end) for one in sets]
    edges = [x for one in clipped for x in (one.start, one.end)]
    cuts = np.unique(np.concatenate([*edges, np.array([step.start, step.end], np.int64)]))
    begin, end = cuts[:-1], cuts[1:]
    state = np.full(len(begin), len(STATES) - 1, np.int64)
    for number, one in reversed(list(enumerate(clipped))):
        state[one.within(begin, end) > 0] = number
    change = np.flatnonzero(np.concatenate(([True], state[1:] != state[:-1])))
    begin, end, state = begin[change], np.append(begin[change[1:]], step.end), state[change]
    bars = merge(begin - origin, end - origin, step.span, most)
    names = [STATES[int(s)] for s in state[bars.largest]]
    return Lane("what it did", bars.start, bars.length, names, names, bars.count, bars.busy)


@dataclass(frozen=True)
class Bars:
    """Neighbours put together."""

    start: Int64
    length: Int64
    count: Int64
    busy: Int64
    largest: Int64  # row of the longest one of each bar


def merge(start: Int64, end: Int64, span: int, most: int) -> Bars:
    """At most about `most` bars of rows sorted by start (picoseconds); short neighbours share one."""
    length = end - start
    key = np.arange(len(start), dtype=np.int64)
    if len(start) > most:
        width = max(2 * span // most, 1)
        short = length < width
        key = np.where(short, start // width, -1 - key)
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if len(start) else key
    if not len(first):
        empty = np.zeros(0, np.int64)
        return Bars(empty, empty, empty, empty, empty)
    bounds = np.append(first[1:], len(start))
    group = np.repeat(np.arange(len(first)), bounds - first)
    largest = np.lexsort((-length, group))[first]
    begins = start[first] // PS_PER_NS
    ends = -(-np.maximum.reduceat(end, first) // PS_PER_NS)
    busy = np.add.reduceat(length, first) // PS_PER_NS
    return Bars(begins, np.maximum(ends - begins, 1), bounds - first, busy, largest)
