"""Where each step's time went on one device: buckets that sum exactly to the step.

At any moment: some compute kernel runs -> compute; else some collective -> exposed communication; else some
copy -> copy; else nothing runs. A gap in which nothing runs is the host's when the host began to launch the next
kernel only after the device had run dry; otherwise the device waited for something else and it is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trackwalker.perf.classes import Engine
from trackwalker.perf.intervals import Intervals
from trackwalker.perf.model import NONE, Buckets, Flags, Int64, Kernels, Step


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
