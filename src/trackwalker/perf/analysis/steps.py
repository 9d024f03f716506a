"""Finds the steps in a trace: by what repeats on the device, numbered by step markers where the host set them.

Kernels carry no step. But an instruction outside every loop runs once a step, so the starts of one such
instruction are the steps' boundaries. Markers alone would not do: the host marks when it dispatched a step, and the
device may be a step behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackwalker.perf.formats.model import NONE, Device, Flags, Int32, Int64, Kernels, Step, Trace

_AGREE = 0.9  # share of a program's instructions whose count must fit the number of steps
_WHOLE = 0.9  # of the median number of kernels: a step with fewer was cut by the start or end of the trace
_CUT = 0.5  # of the shortest other step: the last one lacks most of what a step is
_FEWEST_TO_DROP = 5  # steps: where there are fewer, even a cut one says more than it distorts


# np.unique for columns of small numbers, such as interned names: by counting, where numpy would sort.
_MOST = 1 << 22  # values up to here are counted


@dataclass(frozen=True)
class Distinct:
    """The different values of a column, in order; where each comes first and how often; each row's place among them."""

    values: Int64
    first: Int64
    count: Int64
    index: Int64


def distinct(column: Int32 | Int64) -> Distinct:
    """The different values of one column; NONE (-1) is a value like any other."""
    if not len(column) or column.min() < -1 or column.max() > _MOST:
        values, first, index, count = np.unique(column, return_index=True, return_inverse=True, return_counts=True)
        return Distinct(values.astype(np.int64), first, count, index)
    counts = np.bincount(column + 1)
    found = np.flatnonzero(counts)
    place = np.zeros(len(counts), np.int64)
    place[found] = np.arange(len(found))
    index = place[column + 1]
    first = np.zeros(len(found), np.int64)
    first[index[::-1]] = np.arange(len(column) - 1, -1, -1)  # written backwards: the earliest row is what stays
    return Distinct(found - 1, first, counts[found], index)


def distinct_pairs(one: Int32, other: Int32) -> Distinct:
    """The different pairs of two columns; its values are only numbers for them."""
    a, b = distinct(one), distinct(other)
    return distinct(a.index * len(b.values) + b.index)


def find_steps(trace: Trace, device: Device, launch: Int64) -> list[Step]:
    """The whole steps on a device, in order; `launch` is when the host began to launch each kernel."""
    kernels = device.kernels
    if not trace.compiled:
        return _by_marker(kernels, launch, _markers(trace)) or _by_repetition(trace, kernels, launch)
    return _by_repetition(trace, kernels, launch)


def _by_marker(kernels: Kernels, launch: Int64, markers: Markers) -> list[Step]:
    """Op by op a step is what was launched under its marker; nothing has to repeat."""
    number, begun, ended = markers
    place = np.searchsorted(begun, launch, side="right") - 1
    inside = (launch != NONE) & (place >= 0)
    inside[inside] &= launch[inside] < ended[place[inside]]
    if not inside.any():
        return []
    found, first = np.unique(place[inside], return_index=True)  # kernels are sorted by start: the first is the earliest
    rows = np.flatnonzero(inside)
    starts = kernels.start[rows[first]]
    last = kernels.end[rows].max()
    return _without_cut_tail(
        [
            Step(int(number[at]), int(start), int(end))
            for at, start, end in zip(found, starts, np.append(starts[1:], last), strict=True)
            if end > start
        ]
    )


def _by_repetition(trace: Trace, kernels: Kernels, launch: Int64) -> list[Step]:
    rows = np.flatnonzero(_main_module(kernels) & _launched_in_trace(launch))
    if not len(rows):
        return []
    # A program that was compiled again in between has another id and other instructions: each has its own anchor.
    groups = [rows[kernels.program[rows] == program] for program in np.unique(kernels.program[rows])]
    anchors = np.sort(np.concatenate([own[_anchors(kernels.take(own))] for own in groups]))
    numbers = _numbers(trace, launch[anchors])
    # Several runs of the program under one marker (accumulated gradients) are one step.
    first = np.concatenate(([True], (numbers[1:] != numbers[:-1]) | (numbers[1:] == NONE)))
    anchors, numbers = anchors[first], numbers[first]
    starts = kernels.start[anchors]
    bounds = np.append(starts, kernels.end[rows].max())
    whole = _whole(
        np.diff(np.append(np.searchsorted(kernels.start[rows], starts), len(rows))), kernels.program[anchors]
    )
    return _without_cut_tail(
        [
            Step(int(number) if number != NONE else None, int(start), int(end))
            for number, start, end, keep in zip(numbers, bounds[:-1], bounds[1:], whole, strict=True)
            if keep
        ]
    )


def _without_cut_tail(steps: list[Step]) -> list[Step]:
    """Drop the last step when the wait at its end is not in the trace: it ends with its last kernel.

    A host that sleeps between steps would otherwise have one step without any sleep.
    """
    if len(steps) < _FEWEST_TO_DROP:
        return steps
    shortest = min(step.end - step.start for step in steps[:-1])  # where steps differ, a short one proves nothing
    return steps[:-1] if steps[-1].end - steps[-1].start < _CUT * shortest else steps


def _whole(sizes: Int64, program: Int64) -> Flags:
    """Steps with about as many kernels as the program's other steps have."""
    usual = {int(p): float(np.median(sizes[program == p])) for p in np.unique(program)}
    return sizes >= _WHOLE * np.array([usual[int(p)] for p in program])


def _main_module(kernels: Kernels) -> Flags:
    """The busiest program and others of its name: the same function, compiled for other shapes."""
    main = main_program(kernels)
    module = kernels.module[main]
    return kernels.module == module[0] if len(module) and module[0] != NONE else main


def _launched_in_trace(launch: Int64) -> Flags:
    """Leaves out what was launched before the trace began: the rest of a step that the trace saw only the end of."""
    known = launch != NONE
    if 2 * np.count_nonzero(known) <= len(launch):
        return np.ones(len(launch), np.bool_)  # launches were not traced at all
    return np.arange(len(launch)) >= int(known.argmax())


def main_program(kernels: Kernels) -> Flags:
    """Which kernels belong to the program that took most of the device's time."""
    # Not every trace tells the program's id; the module's name is nearly as good.
    owner = np.where(kernels.program != NONE, kernels.program, kernels.module)
    if len(owner) and (owner == owner[0]).all():
        return np.ones(len(owner), np.bool_)
    programs, index = np.unique(owner, return_inverse=True)
    if not len(programs):
        return np.zeros(0, np.bool_)
    spent = np.zeros(len(programs), np.int64)
    np.add.at(spent, index, kernels.end - kernels.start)
    if len(programs) > 1:
        spent[programs == NONE] = -1  # copies belong to no program
    return np.equal(index, int(spent.argmax()))


def _anchors(kernels: Kernels) -> Int64:
    """Rows of the instruction whose starts are the boundaries of the steps."""
    found = distinct_pairs(kernels.op, kernels.name)
    first, count = found.first, found.count
    steps = _step_count(count)
    # One more than the others: the trace ends inside a step that had begun.
    once = np.flatnonzero((count == steps) | ((count == steps + 1) & (steps > 1)))
    return np.flatnonzero(found.index == once[first[once].argmin()])


def _step_count(count: Int64) -> int:
    """How often the program ran, from how often each of its instructions did.

    Instructions in a loop run a multiple of that, and a step that the trace cuts takes one from some of them.
    """
    candidates, keys = np.unique(count, return_counts=True)
    best, votes = 1, 0
    for candidate, support in zip(candidates, keys, strict=True):
        times = np.maximum(np.rint(count / candidate), 1)
        agree = np.mean(np.abs(count - times * candidate) <= times)
        if agree >= _AGREE and support >= votes:
            best, votes = int(candidate), int(support)
    return best if votes else int(candidates[0])


Markers = tuple[Int64, Int64, Int64]  # number, start and end of each step marker, by start


def _markers(trace: Trace) -> Markers:
    """The host's step markers; a step marked on several threads begins with the first."""
    marked = [t.events.take(t.events.step >= 0) for t in trace.threads]
    number = np.concatenate([e.step for e in marked] or [np.zeros(0, np.int64)])
    start = np.concatenate([e.start for e in marked] or [np.zeros(0, np.int64)])
    end = np.concatenate([e.end for e in marked] or [np.zeros(0, np.int64)])
    order = np.argsort(start, kind="stable")
    _, first = np.unique(number[order], return_index=True)
    rows = order[np.sort(first)]
    return number[rows], start[rows], end[rows]


def _numbers(trace: Trace, launch: Int64) -> Int64:
    """The number that the host's step markers give to each launch; NONE where nothing tells."""
    by_start, begun, _ = _markers(trace)
    numbers = np.full(len(launch), NONE, np.int64)
    if not len(begun):
        return numbers
    if (launch != NONE).all():
        place = np.searchsorted(begun, launch, side="right") - 1
        return np.where(place >= 0, by_start[place.clip(min=0)], NONE)
    # No launches (a CPU trace): the order tells, if there are as many markers as runs.
    return by_start if len(by_start) == len(launch) else numbers
