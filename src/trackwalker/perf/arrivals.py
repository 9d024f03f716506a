"""Who came late to which collective, and by how much."""

from __future__ import annotations

import numpy as np

from trackwalker.perf.meetings import Meetings
from trackwalker.perf.model import NONE, PS_PER_US, Flags, Int64


class Arrivals:
    """Who came late: after the middle one of its group, and by how much."""

    def __init__(self, meetings: Meetings, start: Int64, blur: int) -> None:
        shape = start.shape
        self.latest = np.full(shape, NONE, np.int64)  # when the last of the rank's group came
        self.behind = np.zeros(shape, np.int64)  # how long after the middle one of its group a rank came
        self.decided = np.zeros(shape, bool)  # somebody of its group came clearly later than the middle one
        self.last = np.zeros(shape, bool)  # ... and this rank came no earlier than that
        clear = max(3 * blur, PS_PER_US)
        for number in np.unique(meetings.partition):
            columns = np.flatnonzero(meetings.partition == number)
            for rows in meetings.members(int(number)):
                place = np.ix_(rows, columns)
                came = start[place]
                absent = came == NONE
                order = np.sort(np.where(absent, np.iinfo(np.int64).max, came), axis=0)
                count = (~absent).sum(axis=0)
                middle = np.take_along_axis(order, np.maximum((count - 1) // 2, 0)[None], axis=0)[0]
                latest = came.max(axis=0)
                met = count > 1
                self.latest[place] = np.where(met & ~absent, latest, NONE)
                self.behind[place] = np.where(met & ~absent, np.maximum(came - middle, 0), 0)
                decided = met & (latest - middle > clear) & ~absent
                self.decided[place] = decided
                self.last[place] = decided & (latest - came <= clear) & (came - middle > clear)
        self.present: Flags = (start != NONE) & (self.latest != NONE)
        self.wait = np.where(self.present, self.latest - start, 0)

    def late(self, meetings: Meetings) -> tuple[Int64, Int64]:
        """The steps, and rank x step: how long after the middle rank this one came, over all its collectives."""
        steps, index = np.unique(meetings.step, return_inverse=True)
        rows = [np.bincount(index, behind, len(steps)).astype(np.int64) for behind in self.behind]
        return steps, np.array(rows, np.int64).reshape(len(self.behind), len(steps))
