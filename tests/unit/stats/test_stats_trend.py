"""Slow growth against its own noise: leaks are told from caches that fill, kept copies and saves."""

from __future__ import annotations

import numpy as np
import pytest

from trackwalker.stats.segments import steady_rise

TIMES = np.arange(72.0) * 100.0
NOISE = np.random.default_rng(2).normal(0, 1e8, 72)


def test_a_leak_is_a_slope_with_its_noise_and_a_time_to_full() -> None:
    trend = steady_rise(TIMES, 100e9 + 30e6 * TIMES + NOISE)
    assert trend is not None
    assert trend.slope == pytest.approx(30e6, rel=0.05)
    assert 0 < trend.error < 0.05 * trend.slope
    assert trend.until(trend.level + 30e9 + trend.peak) == pytest.approx(1000.0, rel=0.05)
    assert trend.until(trend.level - 1e9) == 0.0


@pytest.mark.parametrize(
    "values",
    [
        np.full(72, 100e9),
        np.minimum(100e9 + 1e9 * np.arange(72.0) * 4, 180e9),  # a cache that fills and stays
        np.r_[np.full(20, 100e9), np.full(52, 1300e9)],  # a copy kept after the first save
        100e9 + 5e9 * np.sin(np.arange(72.0) / 3),
        200e9 - 30e6 * TIMES,
    ],
    ids=["flat", "fills", "kept-copy", "wanders", "falls"],
)
def test_what_does_not_grow_all_along_is_no_leak(values: np.ndarray) -> None:
    assert steady_rise(TIMES, values + NOISE) is None


def test_noise_alone_is_never_a_trend() -> None:
    rng = np.random.default_rng(5)
    assert not any(steady_rise(TIMES, 100e9 + rng.normal(0, 1e9, 72)) for _ in range(300))


def test_a_leak_is_seen_behind_the_first_save_and_its_peaks_count() -> None:
    values = 100e9 + 30e6 * TIMES + NOISE + np.where(TIMES > 900, 1200e9, 0)
    values[10::10] += 90e9  # the saves themselves
    trend = steady_rise(TIMES, values)
    assert trend is not None
    assert trend.slope == pytest.approx(30e6, rel=0.1)
    assert trend.peak == pytest.approx(90e9, rel=0.1)


def test_gaps_are_left_out_and_a_handful_of_samples_says_nothing() -> None:
    values = 100e9 + 30e6 * TIMES + NOISE
    values[::3] = np.nan
    assert steady_rise(TIMES, values) is not None
    assert steady_rise(TIMES[:10], values[:10]) is None


def test_what_rises_with_each_save_is_seen_through_as_many_blocks() -> None:
    stairs = 1e12 * np.floor((TIMES + 500.0) / 1080.0) + NOISE  # seven saves
    assert steady_rise(TIMES, stairs) is None
    trend = steady_rise(TIMES, stairs, 7)
    assert trend is not None
    assert trend.slope == pytest.approx(1e12 / 1080.0, rel=0.1)
