"""The same collective on all ranks, side by side: who took part, when each came and left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trackwalker.perf.formats.model import NONE, PS_PER_NS, Flags, Gap, Int64
from trackwalker.perf.hlo.collectives import MEETINGS, kind_of
from trackwalker.perf.hlo.groups import Groups
from trackwalker.perf.ranks.gather import RankTable


@dataclass
class Meetings:
    """Executions of collectives that several ranks took part in: rank x execution, sorted by time.

    Times are still on each file's own clock; `base` is each rank's origin against the earliest, so that
    start + base are roughly on one clock. Absent ranks have start NONE.
    """

    ops: list[str]
    op: Int64  # of each execution: index into ops
    step: Int64  # number of the step, the same on all ranks; NONE outside
    start: Int64
    end: Int64
    exposed: Int64
    work: Int64
    host: Int64
    partition: Int64  # of each execution: row of `groups`
    groups: Int64  # partition x rank: number of the group the rank is in, NONE when it takes no part
    base: Int64
    gaps: list[Gap]

    @property
    def present(self) -> Flags:
        """Which ranks took part in which execution."""
        return np.not_equal(self.start, NONE)

    @property
    def kinds(self) -> list[str]:
        """The kind of each op."""
        return [kind_of(op) for op in self.ops]

    def take(self, columns: Int64) -> Meetings:
        """Some of the executions."""
        tables = {n: getattr(self, n)[:, columns] for n in ("start", "end", "exposed", "work", "host")}
        rows = {n: getattr(self, n)[columns] for n in ("op", "step", "partition")}
        return replace(self, **tables, **rows)

    def members(self, partition: int) -> list[Int64]:
        """The ranks of each group with two or more of them."""
        groups = self.groups[partition]
        rows = [np.flatnonzero(groups == g) for g in np.unique(groups[groups >= 0])]
        return [r for r in rows if len(r) > 1]


def match(ranks: Sequence[RankTable]) -> Meetings:
    """Find each collective's executions on all ranks; what cannot be matched becomes a gap."""
    gaps: list[Gap] = []
    names = sorted({name for rank in ranks for name in rank.ops})
    number = {name: i for i, name in enumerate(names)}
    _mismatches(ranks, gaps)
    shifts, first = _step_numbers(ranks, gaps)
    rows = [
        _Row(rank, np.array([number[n] for n in rank.ops], np.int64), shift)
        for rank, shift in zip(ranks, shifts, strict=True)
    ]
    keys = np.unique(np.concatenate([row.keys for row in rows])) if rows else np.zeros(0, np.int64)
    columns = {
        name: np.full((len(ranks), len(keys)), NONE, np.int64) for name in ("start", "end", "exposed", "work", "host")
    }
    for i, row in enumerate(rows):
        place = np.searchsorted(keys, row.keys)
        for name, column in columns.items():
            column[i, place] = getattr(row.calls, name)
    op, step = keys >> 40, (keys >> 20 & 0xFFFFF) - 1
    step = np.where(step >= 0, step + first, NONE)
    kinds = np.array([kind_of(name) in MEETINGS or not kind_of(name) for name in names] or [False])
    shared = ((columns["start"] != NONE).sum(axis=0) > 1) & kinds[op] if len(keys) else np.zeros(0, bool)
    base = _bases(ranks)
    starts = np.where(columns["start"] == NONE, np.iinfo(np.int64).max, columns["start"] + base[:, None])
    order = (
        np.flatnonzero(shared)[np.argsort(starts.min(axis=0)[shared], kind="stable")]
        if len(keys)
        else np.flatnonzero(shared)
    )
    partition, groups = _partitions(ranks, names, gaps)
    return Meetings(
        names, op[order], step[order], partition=partition[op[order]], groups=groups, base=base, gaps=gaps,
        **{name: column[:, order] for name, column in columns.items()},
    )  # fmt: skip


class _Row:
    """A rank's calls with a key that names the same execution on every rank: collective, step, how often before."""

    def __init__(self, rank: RankTable, names: npt.NDArray[np.int64], steps: Int64) -> None:
        calls = rank.calls.take(rank.calls.step >= 0) if len(rank.steps) else rank.calls
        step = steps[calls.step] if len(rank.steps) else np.zeros(len(calls), np.int64)
        self.calls = calls
        self.keys = names[calls.op] << 40 | (step + 1) << 20 | calls.nth


def _step_numbers(ranks: Sequence[RankTable], gaps: list[Gap]) -> tuple[list[Int64], int]:
    """For each rank its steps from zero, such that one number means one step on all ranks; what zero stands for."""
    marked = [[s.number for s in rank.steps] for rank in ranks]
    if all(n is not None for numbers in marked for n in numbers) and _overlap(marked):
        first = min((int(n) for numbers in marked for n in numbers if n is not None), default=0)
        return [np.array([int(n or 0) - first for n in numbers], np.int64) for numbers in marked], first
    counted = [np.arange(len(rank.steps), dtype=np.int64) for rank in ranks]
    base = _bases(ranks)
    starts = [np.array([s.start for s in rank.steps], np.int64) + b for rank, b in zip(ranks, base, strict=True)]
    known = [s for s in starts if len(s)]
    if not known or all(rank.origin_ns is None for rank in ranks):
        if len({len(s) for s in known}) > 1:
            gaps.append(Gap("which steps belong together", "the files say neither step numbers nor when they began"))
        return counted, 0
    reference = max(known, key=len)
    shifted = [c + _shift(reference, s) for c, s in zip(counted, starts, strict=True)]
    lowest = min(int(s.min()) for s in shifted if len(s))
    return [s - lowest for s in shifted], 0


def _overlap(marked: list[list[int | None]]) -> bool:
    present = [set(numbers) for numbers in marked if numbers]
    return bool(present) and bool(set.intersection(*present))


def _shift(reference: Int64, starts: Int64) -> int:
    """How many steps later than the reference a rank's first step is: where the beginnings lie closest."""
    if not len(starts):
        return 0
    best, least = 0, np.inf
    for shift in range(1 - len(starts), len(reference)):
        a = reference[max(shift, 0) : shift + len(starts)]
        b = starts[max(-shift, 0) :][: len(a)]
        if 2 * len(a) >= min(len(reference), len(starts)):
            apart = float(np.median(np.abs(a - b)))
            if apart < least:
                best, least = shift, apart
    return best


def _bases(ranks: Sequence[RankTable]) -> Int64:
    known = [r.origin_ns for r in ranks if r.origin_ns is not None]
    first = min(known, default=0)
    return np.array(
        [((r.origin_ns if r.origin_ns is not None else first) - first) * PS_PER_NS for r in ranks], np.int64
    )


def _partitions(ranks: Sequence[RankTable], names: list[str], gaps: list[Gap]) -> tuple[Int64, Int64]:
    """For each op which partition of the ranks it uses, and the partitions: rank -> group."""
    found: dict[Groups, int] = {(): 0}
    rows = [np.zeros(len(ranks), np.int64)]
    partition = np.zeros(len(names), np.int64)
    places = _places(ranks)
    for i, name in enumerate(names):
        planned = next((r.planned[name] for r in ranks if name in r.planned), None)
        groups = planned.groups if planned else ()
        if groups not in found:
            found[groups] = len(rows)
            rows.append(_membership(groups, len(ranks), places))
            traced, planned_for = len(ranks), sum(map(len, groups))
            if traced < planned_for:
                why = f"{name} joins {planned_for} devices, and {traced} were traced"
                gaps.append(Gap("some of the ranks", why, "trace every process of the job"))
        partition[i] = found[groups]
    return partition, np.array(rows)


def _places(ranks: Sequence[RankTable]) -> dict[int, int]:
    """Groups count the participants of a program; which rank is each of them?"""
    devices = next((r.participants for r in ranks if r.participants), ())
    own = [r.device for r in ranks]
    if len(set(own)) == len(own) and set(own) <= set(devices):
        return {devices.index(device): rank for rank, device in enumerate(own)}
    # Processes that each call their own device 0: ranks are in the order of the global devices.
    order = sorted(devices)
    return {i: order.index(device) for i, device in enumerate(devices)}


def _membership(groups: Groups, ranks: int, places: dict[int, int]) -> Int64:
    """The number of each rank's group."""
    numbers = np.full(ranks, NONE, np.int64)
    for number, members in enumerate(groups):
        for member in members:
            rank = places.get(member, NONE) if places else member
            if 0 <= rank < ranks:
                numbers[rank] = number
    return numbers


def _mismatches(ranks: Sequence[RankTable], gaps: list[Gap]) -> None:
    """Ranks that do not do what the others do."""
    if len(ranks) < 2:
        return
    counts = [len(rank.steps) for rank in ranks]
    usual = max(set(counts), key=counts.count)
    for rank, count in zip(ranks, counts, strict=True):
        if abs(count - usual) > 1:  # one more or less is where the profiler happened to begin and end
            why = f"{rank.label} has {count} whole steps in its trace, and most ranks {usual}"
            gaps.append(Gap("steps that not all ranks have", why, "trace all ranks over the same steps"))
    sets = [frozenset(rank.ops) for rank in ranks]
    common = max(set(sets), key=sets.count)
    for rank, ops in zip(ranks, sets, strict=True):
        if ops != common and ops:
            odd = sorted(ops ^ common)[:3]
            why = f"{rank.label} ran other collectives than most ranks: {', '.join(odd)}"
            gaps.append(Gap("part of the comparison", why, "check that all ranks run the same program"))
        elif not ops and common:
            why = f"{rank.label} has no collective in its trace"
            gaps.append(Gap("part of the comparison", why, "trace all ranks over the same steps"))
