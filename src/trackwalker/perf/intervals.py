"""Sets of moments as sorted, disjoint intervals of integers; every measure is exact."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackwalker.perf.model import Int64


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
