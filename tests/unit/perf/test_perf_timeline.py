"""The division of a step's time, against a model that looks at every single moment."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trackwalker.perf.analysis.classes import Engine
from trackwalker.perf.analysis.step_buckets import Intervals, timeline
from trackwalker.perf.formats.model import NONE, Buckets, Kernels, Step

END = 40
moments = st.integers(0, END)
intervals = st.lists(st.tuples(moments, moments).map(sorted), max_size=12)
# start and end, what it occupies, when it was launched (or nobody knows)
kernel = st.tuples(
    st.tuples(moments, moments).map(sorted), st.sampled_from(list(Engine)), st.one_of(st.just(NONE), moments)
)


def made(rows: list[list[int]]) -> Intervals:
    pairs = np.array(rows, np.int64).reshape(-1, 2)
    return Intervals.of(pairs[:, 0], pairs[:, 1])


def covered(rows: list[list[int]]) -> set[int]:
    return {moment for start, end in rows for moment in range(start, end)}


@settings(max_examples=40, deadline=None)
@given(intervals, intervals, moments, moments)
def test_interval_sets_measure_what_a_set_of_moments_measures(a, b, x, y) -> None:
    low, high = min(x, y), max(x, y)
    one, two = made(a), made(b)
    assert one.total == len(covered(a))
    assert one.union(two).total == len(covered(a) | covered(b))
    inside = {moment for moment in covered(a) if low <= moment < high}
    assert one.within(np.array([low]), np.array([high])).tolist() == [len(inside)]
    assert one.clip(low, high).total == len(inside)
    assert covered(np.stack([(g := one.gaps(low, high)).start, g.end], 1).tolist()) == set(range(low, high)) - inside
    assert (one.start[1:] > one.end[:-1]).all(), "disjoint and not touching"


def brute(rows: list, step: tuple[int, int], begin: int) -> Buckets:
    """Every moment by itself, by the sentence that defines the buckets."""
    runs = [(start, end, engine, launch) for (start, end), engine, launch in rows if end > start]
    counts = dict.fromkeys(["compute", "exposed_comm", "copy", "host_gap", "idle", "overlapped_comm"], 0)
    for moment in range(*step):
        now = {engine for start, end, engine, _ in runs if start <= moment < end}
        if Engine.COMPUTE in now:
            counts["compute"] += 1
            counts["overlapped_comm"] += Engine.COLLECTIVE in now
        elif Engine.COLLECTIVE in now:
            counts["exposed_comm"] += 1
        elif Engine.COPY in now:
            counts["copy"] += 1
        else:
            later = [run for run in runs if run[0] > moment]
            ran_dry = max([end for _, end, *_ in runs if end <= moment], default=begin)
            first = min(later, key=lambda run: (run[0], run[1])) if later else None
            late = first is not None and first[3] != NONE and first[3] > ran_dry
            counts["host_gap" if late else "idle"] += 1
    return Buckets(**counts)


@settings(max_examples=70, deadline=None)
@given(st.lists(kernel, max_size=10), st.lists(moments, min_size=2, max_size=4, unique=True).map(sorted))
def test_buckets_are_what_looking_at_every_moment_gives_and_sum_to_the_step(rows, bounds) -> None:
    rows = sorted(rows, key=lambda row: (row[0][0], row[0][1]))
    steps = [Step(None, start, end) for start, end in pairwise(bounds)]
    kernels = Kernels.of(len(rows), start=[r[0][0] for r in rows], end=[r[0][1] for r in rows])
    engine = np.array([r[1] for r in rows], np.int64)
    launch = np.array([r[2] for r in rows], np.int64)
    found = timeline(kernels, engine, launch, bounds[0]).buckets(steps)
    real = [row for row in rows if row[0][1] > row[0][0]]
    begin = min([bounds[0], *(row[0][0] for row in real)])
    assert found == [brute(rows, (step.start, step.end), begin) for step in steps]
    assert [b.total for b in found] == [step.span for step in steps]


def test_buckets_of_times_that_no_float_can_hold_stay_exact() -> None:
    hour = 3_600_000_000_000_000
    kernels = Kernels.of(2, start=[hour, 2 * hour + 1], end=[2 * hour, 3 * hour])
    line = timeline(kernels, np.array([Engine.COMPUTE, Engine.COLLECTIVE]), np.array([NONE, NONE]))
    (found,) = line.buckets([Step(1, hour, 3 * hour)])
    assert found == Buckets(compute=hour, exposed_comm=hour - 1, idle=1)


def test_a_device_that_ran_nothing_is_idle() -> None:
    nothing = timeline(Kernels.empty(), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert nothing.buckets([Step(None, 0, 10)]) == [Buckets(idle=10)]
