"""Counting gives what numpy's sorting gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trackwalker.perf.analysis.steps import distinct, distinct_pairs

SMALL = st.integers(-1, 40)
ANY = st.one_of(SMALL, st.integers(-(2**40), 2**40))


@given(st.one_of(st.lists(SMALL), st.lists(ANY)))
def test_the_values_of_a_column_are_those_that_numpy_finds(rows: list[int]) -> None:
    column = np.array(rows, np.int64)
    found = distinct(column)
    values, first, index, count = np.unique(column, return_index=True, return_inverse=True, return_counts=True)
    assert found.values.tolist() == values.tolist()
    assert found.first.tolist() == first.tolist()
    assert found.index.tolist() == index.tolist()
    assert found.count.tolist() == count.tolist()


@given(st.lists(st.tuples(SMALL, SMALL)))
def test_pairs_are_told_apart(rows: list[tuple[int, int]]) -> None:
    one, other = np.array(rows, np.int32).reshape(-1, 2).T
    found = distinct_pairs(one, other)
    assert len(found.values) == len(set(rows))
    assert [rows[at] for at in found.first] == sorted(set(rows))
    assert [rows[found.first[place]] for place in found.index] == rows
