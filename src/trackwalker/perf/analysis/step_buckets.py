"""Where each step's time went on one device: buckets that sum exactly to the step.

At any moment: some compute kernel runs -> compute; else some collective -> exposed communication; else some
copy -> copy; else nothing runs. A gap in which nothing runs is the host's when the host began to launch the next
kernel only after the device had run dry; otherwise the device waited for something else and it is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackwalker.perf.analysis.classes import Engine
from trackwalker.perf.formats.model import NONE, Buckets, Flags, Int64, Kernels, Step


# Sets of moments as sorted, disjoint intervals of integers; every measure is exact.
@dataclass(frozen=True)
class Intervals:
    """Moments [start, end) in which something was the case; sorted, disjoint, none of them empty."""

    start: Int64
    end: Int64

    @staticmethod
    def of(start: Int64, end: Int64) -> Intervals:
        """The union of intervals in any order, overlapping or not."""
        real = end > start
        start, end = start[real], end[real]
        if not len(start):
            return Intervals(start, end)
        if np.any(start[1:] < start[:-1]):
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        reach = np.maximum.accumulate(end)  # how far anything that began so far extends
        first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
        last = np.append(first[1:], len(start)) - 1
        return Intervals(start[first], reach[last])

    @staticmethod
    def none() -> Intervals:
        """The empty set."""
        return Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Its length."""
        return int((self.end - self.start).sum())

    def union(self, other: Intervals) -> Intervals:
        """What is in either."""
        return Intervals.of(np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end)))

    def gaps(self, start: int, end: int) -> Intervals:
        """What of a window is not in the set."""
        inside = self.clip(start, end)
        begins = np.concatenate((np.array([start], np.int64), inside.end))
        ends = np.concatenate((inside.start, np.array([end], np.int64)))
        real = ends > begins
        return Intervals(begins[real], ends[real])

    def clip(self, start: int, end: int) -> Intervals:
        """What of the set is in a window."""
        begins, ends = np.maximum(self.start, start), np.minimum(self.end, end)
        real = ends > begins
        return Intervals(begins[real], ends[real])

    @cached_property
    def _before(self) -> Int64:
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(self.end - self.start)))

    def until(self, moments: Int64) -> Int64:
        """For each moment, how much of the set lies before it."""
        begun = np.searchsorted(self.start, moments, side="right")
        open_ends = np.concatenate((np.zeros(1, np.int64), self.end))[begun]
        # What has begun counts in full, less what of the last interval lies after the moment.
        return self._before[begun] - np.where(begun > 0, np.maximum(open_ends - moments, 0), 0)

    def within(self, start: Int64, end: Int64) -> Int64:
        """For each window, how much of the set lies in it."""
        return self.until(end) - self.until(start)


@dataclass(frozen=True)
class Timeline:
    """What one device was doing, as sets of moments."""

    compute: Intervals
    comm: Intervals  # all communication, hidden or not
    compute_or_comm: Intervals
    busy: Intervals
    host_gaps: Intervals

    def buckets(self, steps: Sequence[Step]) -> list[Buckets]:
        """One division for each window."""
        start = np.array([step.start for step in steps], np.int64)
        end = np.array([step.end for step in steps], np.int64)
        compute = self.compute.within(start, end)
        working = self.compute_or_comm.within(start, end)
        busy = self.busy.within(start, end)
        host = self.host_gaps.within(start, end)
        comm = self.comm.within(start, end)
        exposed = working - compute
        columns = (compute, exposed, busy - working, host, end - start - busy - host, comm - exposed)
        return [Buckets(*map(int, row)) for row in zip(*columns, strict=True)]


def timeline(kernels: Kernels, engine: Int64, launch: Int64, begin: int | None = None) -> Timeline:
    """The timeline of a device from its kernels, what each occupies (Engine) and when the host began to launch it.

    `begin` is the first moment that is asked about: what comes before the first kernel is a gap, too.
    """
    compute = _union(kernels, engine == Engine.COMPUTE)
    comm = _union(kernels, engine == Engine.COLLECTIVE)
    both = compute.union(comm)
    busy = both.union(_union(kernels, engine == Engine.COPY))
    if not len(busy):
        return Timeline(compute, comm, both, busy, busy)
    first, last = int(busy.start[0]), int(busy.end[-1])
    gaps = busy.gaps(first if begin is None else min(begin, first), last)
    launched = launch[next_kernel(kernels, gaps)]
    late = (launched != NONE) & (launched > gaps.start)
    return Timeline(compute, comm, both, busy, Intervals(gaps.start[late], gaps.end[late]))


def next_kernel(kernels: Kernels, gaps: Intervals) -> Int64:
    """For each gap, the row of the kernel that ended it."""
    real = np.flatnonzero(kernels.end > kernels.start)
    return real[np.searchsorted(kernels.start[real], gaps.end)]


def _union(kernels: Kernels, rows: Flags) -> Intervals:
    return Intervals.of(kernels.start[rows], kernels.end[rows])
