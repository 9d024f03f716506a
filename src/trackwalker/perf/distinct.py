"""np.unique for columns of small numbers, such as interned names: by counting, where numpy would sort."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackwalker.perf.model import Int32, Int64

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
