"""Our medians against numpy's own: the same bits."""

import warnings

import numpy as np

from trackwalker.stats.medians import known_median, known_row_medians, median, row_medians


def _same(ours: object, theirs: object) -> bool:
    return np.array_equal(np.asarray(ours, float).view(np.uint64), np.asarray(theirs, float).view(np.uint64))


def test_they_are_numpys_to_the_last_bit() -> None:
    rng = np.random.default_rng(7)
    for n in (1, 2, 3, 4, 7, 10, 21, 100, 1001):
        for holes in (0.0, 0.2):
            rows = np.round(rng.lognormal(size=(13, n)), 3) * rng.choice([1.0, 1e-9, 1e9])
            rows[rng.random(rows.shape) < holes] = np.nan
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                assert _same([median(row) for row in rows], np.median(rows, axis=1))
                assert _same(row_medians(rows), np.median(rows, axis=1))
                assert _same([known_median(row) for row in rows], np.nanmedian(rows, axis=1))
                assert _same(known_row_medians(rows), np.nanmedian(rows, axis=1))


def test_of_whole_numbers_and_of_nothing() -> None:
    assert median(np.array([3, 1, 2, 10])) == 2.5
    assert np.isnan(median([]))
    assert np.isnan(known_median([np.nan]))
