"""Every execution of a collective on one device: when it was, how much of it nothing hid, and the work before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trackwalker.perf.analysis.step_buckets import Timeline
from trackwalker.perf.formats.model import Flags, Int32, Int64, Kernels, Step, Strings, Table


@dataclass
class Calls(Table):
    """Executions of collectives on one device, sorted by start."""

    start: Int64
    end: Int64
    exposed: Int64  # of it, no compute kernel ran
    work: Int64  # compute since the collective before had ended
    host: Int64  # the same of gaps the host caused
    op: Int32  # index into the names that come with the table
    step: Int32  # index of the step it began in, -1 outside
    nth: Int32  # how often the same collective had begun in this step before


def find_calls(
    kernels: Kernels, strings: Strings, collective: Flags, timeline: Timeline, steps: Sequence[Step]
) -> tuple[list[str], Calls]:
    """The collectives among a device's kernels; `collective` says which rows are. Names are HLO ops where known."""
    rows = kernels.take(collective)
    names, op = np.unique(np.where(rows.op >= 0, rows.op, rows.name), return_inverse=True)
    start, end, op = _merged(rows.start, rows.end, op.astype(np.int64))
    edges = np.array([s.start for s in steps], np.int64)
    step = np.searchsorted(edges, start, side="right") - 1
    if len(steps):
        step[start >= np.array([s.end for s in steps], np.int64)[step]] = -1
    before = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1])) if len(start) else start
    since = np.minimum(before, start)
    made = Calls.of(
        len(start),
        start=start,
        end=end,
        exposed=end - start - timeline.compute.within(start, end),
        work=timeline.compute.within(since, start),
        host=timeline.host_gaps.within(since, start),
        op=op,
        step=step,
        nth=_nth(op, step),
    )
    return [strings[int(name)] for name in names], made


def last_steps(calls: Calls, most: int) -> Calls:
    """The calls of as many whole steps as fit, two at least: all ranks keep the same ones, and little travels."""
    if len(calls) <= most or not (calls.step >= 0).any():
        return calls.take(slice(-most, None))
    kept = calls.step[-most:]
    first = kept.min(initial=calls.step.max(), where=kept >= 0) + 1  # the limit falls into the one before
    return calls.take(calls.step >= min(first, calls.step.max() - 1))


def _merged(start: Int64, end: Int64, op: Int64) -> tuple[Int64, Int64, Int64]:
    """One execution may be several kernels at once: those of one collective that overlap are one."""
    order = np.lexsort((start, op))
    start, end, op = start[order], end[order], op[order]
    if not len(start):
        return start, end, op
    # Each collective's times are moved to a range of their own, so that one running maximum serves all.
    shift = (end.max() - start.min() + 1) * op
    reach = np.maximum.accumulate(end + shift)
    first = np.flatnonzero(np.concatenate(([True], (start + shift)[1:] >= reach[:-1])))
    last = np.append(first[1:], len(start)) - 1
    merged = start[first], (reach - shift)[last], op[first]
    by_time = np.argsort(merged[0], kind="stable")
    return merged[0][by_time], merged[1][by_time], merged[2][by_time]


def _nth(op: Int64, step: Int64) -> Int64:
    """Within each step and collective: 0, 1, 2 ... in the order of time."""
    order = np.lexsort((np.arange(len(op)), step, op))
    fresh = np.ones(len(op), bool)
    fresh[1:] = (op[order][1:] != op[order][:-1]) | (step[order][1:] != step[order][:-1])
    position = np.arange(len(op))
    count = position - np.maximum.accumulate(np.where(fresh, position, 0))
    nth = np.empty(len(op), np.int64)
    nth[order] = count
    return nth
