"""What if: plays the job's meetings again with one rank's lateness taken away.

A rank works for a while after the last collective it had left, then comes to the next; the group leaves when the last
has come and the transfer is done. Work and transfer are measured; only the waiting is played anew.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trackwalker.perf.formats.model import Int64
from trackwalker.perf.ranks.collective_matches import Meetings
from trackwalker.stats.medians import known_row_medians

Floats = npt.NDArray[np.float64]

_MOST = 4_000  # executions that are played: what they say holds for the rest
_NEVER = -1e30


class Replay:
    """The measured job, ready to be played."""

    def __init__(self, meetings: Meetings, start: Int64, end: Int64) -> None:
        self._meetings = meetings.take(np.arange(min(start.shape[1], _MOST)))
        count = self._meetings.start.shape[1]
        self._here = self._meetings.present
        self._start = np.where(self._here, start[:, :count], np.nan).astype(float)
        self._end = np.where(self._here, end[:, :count], np.nan).astype(float)
        self._origin = float(np.nanmin(self._start)) if count else 0.0
        self._start -= self._origin
        self._end -= self._origin
        self._orders = [self._order(row) for row in self._meetings.groups]
        self._left, self._transfer = self._leaves()
        self._before = self._predecessors()
        self.segments = self._start - self._left_before(self._left)  # work of each rank before each execution

    @property
    def executions(self) -> int:
        """How many are played."""
        return int(self._start.shape[1])

    @property
    def steps(self) -> int:
        """How many steps they are of."""
        return max(len(np.unique(self._meetings.step)), 1)

    def typical(self, without: int) -> Floats:
        """What the other ranks needed before each execution: their median, or its own time where there are none."""
        return median_of(np.delete(self.segments, without, axis=0), self.segments[without])

    def middle(self) -> Floats:
        """What the middle rank needed before each execution; of two ranks the quicker one."""
        rows = np.sort(self.segments, axis=0)  # NaN comes last
        place = (np.maximum(np.isfinite(rows).sum(axis=0), 1) - 1) // 2
        middle: Floats = np.take_along_axis(rows, place[None], axis=0)[0]
        return middle

    def play(self, segments: list[Floats]) -> list[float]:
        """How long the job takes with each of these work times (rank x execution)."""
        work = np.stack(segments)
        scenarios, ranks, count = work.shape
        left = np.zeros((scenarios, ranks, count + 1))
        everyone = np.arange(ranks)
        for i in range(count):
            before = self._before[:, i]
            arrive = left[:, everyone, before] + work[:, :, i]
            order, starts, sizes, inverse = self._orders[self._meetings.partition[i]]
            arrive = np.where(self._here[:, i], arrive, _NEVER)[:, order]
            last = np.repeat(np.maximum.reduceat(arrive, starts, axis=1), sizes, axis=1)[:, inverse]
            left[:, :, i + 1] = np.where(self._here[:, i], last + self._transfer[:, i], 0.0)
        return [float(x) for x in left.max(axis=(1, 2))]

    def _order(self, groups: Int64) -> tuple[Int64, Int64, Int64, Int64]:
        """Ranks sorted by group, where each group begins, how large it is, and the way back."""
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.concatenate(([True], np.diff(groups[order]) != 0)))
        sizes = np.diff(np.append(starts, len(order)))
        return order, starts, sizes, np.argsort(order)

    def _leaves(self) -> tuple[Floats, Floats]:
        """When each rank's group had left each execution, and how long after the last had come."""
        left = self._end.copy()
        last = self._start.copy()
        for number in np.unique(self._meetings.partition):
            columns = np.flatnonzero(self._meetings.partition == number)
            for rows in self._meetings.members(int(number)):
                place = np.ix_(rows, columns)
                left[place] = median_of(self._end[place], self._end[rows[0]][columns])
                last[place] = np.where(self._here[place], self._start[place], _NEVER).max(axis=0)
        return left, np.where(self._here, np.maximum(left - last, 0.0), 0.0)

    def _predecessors(self) -> Int64:
        """For each rank and execution: the last one it had left before it came; 0 none, else the number plus one."""
        ranks, count = self._start.shape
        before = np.zeros((ranks, count), np.int64)
        for rank in range(ranks):
            mine = np.flatnonzero(self._here[rank])
            ends = self._left[rank, mine]
            by_end = np.argsort(ends, kind="stable")
            place = np.searchsorted(ends[by_end], self._start[rank, mine], side="right")
            # Played in order of time: only what comes earlier in the table can have been left.
            furthest = np.concatenate(([0], np.maximum.accumulate(by_end + 1)))
            latest = np.minimum(furthest[place], np.arange(len(mine)))
            before[rank, mine] = np.concatenate(([0], mine + 1))[latest]
        return before

    def _left_before(self, left: Floats) -> Floats:
        padded = np.concatenate((np.zeros((left.shape[0], 1)), left), axis=1)
        return np.take_along_axis(padded, self._before, axis=1)


def median_of(table: Floats, otherwise: Floats) -> Floats:
    """The median of each column, or another value where the column is empty."""
    found = known_row_medians(table.T)
    return np.where(np.isnan(found), otherwise, found)
