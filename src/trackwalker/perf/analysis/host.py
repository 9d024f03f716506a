"""What the host was doing while the device ran dry: launches joined with kernels, and the frame behind each gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackwalker.perf.analysis.step_buckets import Timeline, next_kernel
from trackwalker.perf.formats.model import NONE, Flags, HostThread, Int64, Kernels, Strings, Trace

_PYTHON = "$"  # how the Python tracer marks a frame: $file.py:12 function
_COMPILE = "backend_compile"  # how JAX marks a compilation, whatever the device
_FRAMES = 2_000  # events looked at for one gap: a gap with more is named by the outermost of them


@dataclass(frozen=True)
class Launches:
    """For each kernel of a device: when its launch began on the host, and on which thread."""

    start: Int64
    thread: Int64  # index into Trace.threads


@dataclass(frozen=True)
class HostGap:
    """A stretch in which the device had nothing to do because the host came late with the next kernel."""

    start: int
    end: int
    frame: str  # innermost call that took most of it
    stack: tuple[str, ...]  # what called it, outermost first
    thread: str
    kernel: str  # the kernel that ended the gap

    @property
    def span(self) -> int:
        """Its length in picoseconds."""
        return self.end - self.start


def launches(trace: Trace, kernels: Kernels) -> Launches:
    """Joins kernels with the host events that carry the same correlation number; NONE where there is none."""
    absent = np.full(len(kernels), NONE, np.int64)
    asked = kernels.correlation
    low, high = int(asked[asked > 0].min(initial=1 << 62)), int(asked.max(initial=0))
    given = [thread.events.correlation for thread in trace.threads]
    rows = [np.flatnonzero((numbers >= low) & (numbers <= high)) for numbers in given]
    if not sum(map(len, rows)):
        return Launches(absent, absent)
    pairs = list(zip(trace.threads, rows, strict=True))
    number = np.concatenate([t.events.correlation[r] for t, r in pairs])
    start = np.concatenate([t.events.start[r] for t, r in pairs])
    thread = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    found, known = _match(number, asked, low, high)
    return Launches(*(np.where(known, column[found], NONE) for column in (start, thread)))


def _match(number: Int64, asked: Int64, low: int, high: int) -> tuple[Int64, Flags]:
    """For each number asked for, the first row that has it, and whether there is one."""
    if high - low < 4 * (len(number) + len(asked)):  # numbers are given out one after the other: a table, no sorting
        table = np.full(high - low + 1, NONE, np.int64)
        table[number[::-1] - low] = np.arange(len(number))[::-1]
        found = np.where(asked >= low, table[np.maximum(asked - low, 0)], NONE)
        return found, found >= 0
    order = np.argsort(number, kind="stable")
    found = order[np.searchsorted(number[order], asked).clip(max=len(number) - 1)]
    return found, number[found] == asked


def host_gaps(trace: Trace, kernels: Kernels, line: Timeline, launched: Launches, most: int = 200) -> list[HostGap]:
    """The longest gaps that the host caused, longest first, each with the frame that took most of it."""
    gaps = line.host_gaps
    longest = np.argsort(gaps.start - gaps.end, kind="stable")[:most]
    after = next_kernel(kernels, gaps)
    reach = [np.maximum.accumulate(thread.events.end) for thread in trace.threads]
    python = [place for place, thread in enumerate(trace.threads) if _has_python(thread, trace.strings)]
    found = []
    for row in longest:
        start, end, kernel = int(gaps.start[row]), int(gaps.end[row]), int(after[row])
        until, launcher = int(min(end, launched.start[kernel])), int(launched.thread[kernel])
        own, stack = _busiest(trace.threads[launcher], reach[launcher], start, until, trace.strings)
        thread = trace.threads[launcher].name
        if 2 * own < until - start:  # the launching thread waited itself: for Python, most likely
            for place in python:
                spent, frames = _busiest(trace.threads[place], reach[place], start, until, trace.strings)
                if spent > own:
                    own, stack, thread = spent, frames, trace.threads[place].name
        *callers, frame = stack or ("nothing traced",)
        found.append(HostGap(start, end, frame, tuple(callers), thread, trace.strings[int(kernels.name[kernel])]))
    return found


def compilations(trace: Trace) -> list[tuple[int, int]]:
    """When the host compiled a program while it was traced: a step that meets a new shape stands still for it."""
    found = []
    for thread in trace.threads:
        names = {int(n) for n in np.unique(thread.events.name) if trace.strings[int(n)].startswith(_COMPILE)}
        rows = np.flatnonzero(np.isin(thread.events.name, list(names)))
        found += [(int(thread.events.start[row]), int(thread.events.end[row])) for row in rows]
    return sorted(found)


def _has_python(thread: HostThread, strings: Strings) -> bool:
    return any(strings[int(name)].startswith(_PYTHON) for name in thread.events.name[:20])


def _busiest(thread: HostThread, reach: Int64, start: int, end: int, strings: Strings) -> tuple[int, tuple[str, ...]]:
    """The call of a thread that took most of a window by itself, with its callers; its own time there."""
    events = thread.events
    low, high = int(np.searchsorted(reach, start, side="right")), int(np.searchsorted(events.start, end))
    rows = low + np.flatnonzero(events.end[low:high] > start)
    if len(rows) > _FRAMES:
        rows = rows[np.sort(np.argsort(events.start[rows] - events.end[rows], kind="stable")[:_FRAMES])]
    own: dict[int, int] = {}
    caller: dict[int, int] = {}
    open_calls: list[int] = []
    for row in map(int, rows):
        while open_calls and events.end[open_calls[-1]] <= events.start[row]:
            open_calls.pop()
        own[row] = int(min(events.end[row], end) - max(events.start[row], start))
        if open_calls:
            caller[row] = open_calls[-1]
            own[open_calls[-1]] -= own[row]
        open_calls.append(row)
    if not own:
        return 0, ()
    best = max(own, key=lambda row: own[row])
    stack = [best]
    while stack[-1] in caller:
        stack.append(caller[stack[-1]])
    return own[best], tuple(strings[int(events.name[row])].lstrip(_PYTHON) for row in reversed(stack))
