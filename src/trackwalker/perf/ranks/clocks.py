"""One clock for all files: ranks leave a collective together, so their ends tell how far their clocks are apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trackwalker.perf.formats.model import NONE, PS_PER_US, Int64
from trackwalker.perf.ranks.collective_matches import Meetings
from trackwalker.stats.medians import known_row_medians

Floats = npt.NDArray[np.float64]

_SURE = 4.0  # a clock is moved when the ends say so by that many times their scatter
_ENOUGH, _VERY_SURE = 20, 20.0  # with fewer executions the scatter itself is hardly known
_FEW = 5  # executions in a third: too few to tell a drift by
_SAMPLE = 2000  # executions that are enough to set a clock by


@dataclass(frozen=True)
class Alignment:
    """What each rank's clock must be moved by, and how well that makes the ends of collectives agree."""

    offset: Int64  # picoseconds to add to each rank's times, on top of its file's origin
    drift: Floats  # per picosecond, of each rank's clock against the others
    pivot: float  # the moment at which drift moves nothing
    residual_ps: int | None  # typical disagreement of ends afterwards; None: nothing to compare
    early: float  # share of executions in which some rank left before the last had come: should be nearly none

    def moved(self, times: Int64, base: Int64) -> Int64:
        """A rank x execution table of times on the common clock; NONE stays."""
        rough = times + base[:, None]
        shift = self.offset[:, None] + np.rint(self.drift[:, None] * (rough - self.pivot)).astype(np.int64)
        return np.where(times == NONE, NONE, rough + shift)


def align(meetings: Meetings, files: Int64) -> Alignment:
    """The clocks of the files; ranks of one file (`files` says which) share a clock and are moved together."""
    count = meetings.start.shape[1]
    meetings = meetings.take(np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)))
    ranks = len(files)
    ends = np.where(meetings.present, (meetings.end + meetings.base[:, None]).astype(float), np.nan)
    still = Alignment(np.zeros(ranks, np.int64), np.zeros(ranks), 0.0, None, 0.0)
    if not ends.size or len(np.unique(files)) < 2:
        return _judged(still, meetings, ends if ends.size else None)
    origin = np.nanmin(ends)
    ends = ends - origin
    offset = _offsets(ends, meetings, files)
    drift, pivot = _drifts(ends, offset, meetings, files)
    straight = ends + drift[:, None] * (ends - pivot)
    offset = _offsets(straight, meetings, files)
    made = Alignment(np.rint(offset).astype(np.int64), drift, pivot + origin, None, 0.0)
    return _judged(made, meetings, straight + offset[:, None])


def _offsets(ends: Floats, meetings: Meetings, files: Int64) -> Floats:
    """From file to file: two files that meet anywhere are set by the median difference of their ends there."""
    shared = _shared(ends, meetings, files)
    offset = {int(files[0]): 0.0}
    waiting = [int(files[0])]
    unset = set(files.tolist()) - set(waiting)
    while waiting or unset:
        if not waiting:  # these files never meet the ones before: only their own clocks say where they are
            waiting.append(min(unset))
            unset.discard(waiting[0])
            offset[waiting[0]] = 0.0
        here = waiting.pop(0)
        for other in sorted(unset):
            apart = [group[here] - group[other] for group in shared if here in group and other in group]
            both = np.concatenate(apart) if apart else np.zeros(0)
            both = both[np.isfinite(both)]
            if len(both):
                apart_by = float(np.median(both))
                scatter = float(np.median(np.abs(both - apart_by)))
                # Ends that scatter more than the clocks differ say nothing: then the files' own clocks are better.
                needed = (_SURE if len(both) >= _ENOUGH else _VERY_SURE) * scatter
                offset[other] = offset[here] + (apart_by if abs(apart_by) > needed else 0.0)
                waiting.append(other)
                unset.discard(other)
    return np.array([offset[int(file)] for file in files])


def _shared(ends: Floats, meetings: Meetings, files: Int64) -> list[dict[int, Floats]]:
    """For each group that several files are in: when each of the files left each execution."""
    found = []
    for number in np.unique(meetings.partition):
        columns = np.flatnonzero(meetings.partition == number)
        for rows in meetings.members(int(number)):
            inside = np.unique(files[rows])
            if len(inside) > 1:
                part = ends[np.ix_(rows, columns)]
                found.append({int(f): known_row_medians(part[files[rows] == f].T) for f in inside})
    return found


def _drifts(ends: Floats, offset: Floats, meetings: Meetings, files: Int64) -> tuple[Floats, float]:
    """Clocks that run at another speed: the first third of the executions against the last."""
    moved = ends + offset[:, None]
    left = _left(moved, meetings)
    moment = known_row_medians(left.T)
    known = np.isfinite(moment)
    drift = np.zeros(len(files))
    third = ends.shape[1] // 3
    if third < _FEW or not known[:third].any() or not known[-third:].any():
        return drift, 0.0
    pivot = float(np.median(moment[known]))
    apart = left - moved
    early, late = slice(0, third), slice(-third, None)
    distance = float(np.nanmedian(moment[late]) - np.nanmedian(moment[early]))
    nothing = np.zeros(len(files))
    change = _per_file(apart[:, late], files, nothing) - _per_file(apart[:, early], files, nothing)
    scatter = float(np.nanmedian(np.abs(apart[:, early] - _per_file(apart[:, early], files, nothing)[:, None])))
    if distance > 0:
        sure = np.abs(change) > max(_SURE * scatter, PS_PER_US)
        drift[sure] = change[sure] / distance
    return drift, pivot


def _left(ends: Floats, meetings: Meetings) -> Floats:
    """When the group of each rank left each execution; NaN where a rank has no other to compare with."""
    left = np.full(ends.shape, np.nan)
    for number in np.unique(meetings.partition):
        columns = np.flatnonzero(meetings.partition == number)
        for rows in meetings.members(int(number)):
            part = ends[np.ix_(rows, columns)]
            whole = np.isfinite(part).sum(axis=0) > 1
            if whole.any():
                middle = known_row_medians(part[:, whole].T)
                left[np.ix_(rows, columns[whole])] = middle
    return np.where(np.isfinite(ends), left, np.nan)


def _per_file(apart: Floats, files: Int64, otherwise: Floats) -> Floats:
    """The median of each file, on each of its ranks."""
    result = otherwise.copy()
    for file in np.unique(files):
        part = apart[files == file]
        part = part[np.isfinite(part)]
        if len(part):
            result[files == file] = np.median(part)
    return result


def _judged(made: Alignment, meetings: Meetings, ends: Floats | None) -> Alignment:
    """How well the clocks agree now."""
    if ends is None:
        return made
    apart = np.abs(_left(ends, meetings) - ends)
    apart = apart[np.isfinite(apart)]
    residual = int(np.median(apart)) if len(apart) else None
    starts = made.moved(meetings.start, meetings.base)
    finished = made.moved(meetings.end, meetings.base)
    early, total = 0, 0
    for number in np.unique(meetings.partition):
        columns = np.flatnonzero(meetings.partition == number)
        for rows in meetings.members(int(number)):
            begun, over = starts[np.ix_(rows, columns)], finished[np.ix_(rows, columns)]
            first_out = np.where(begun == NONE, np.iinfo(np.int64).max, over).min(axis=0)
            slack = 3 * (residual or 0) + PS_PER_US
            early += int((first_out + slack < begun.max(axis=0)).sum())
            total += len(columns)
    return Alignment(made.offset, made.drift, made.pivot, residual, early / total if total else 0.0)
