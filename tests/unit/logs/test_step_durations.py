"""Steps of a trainer that prints no durations: timed by the clock of whoever looks, and by the rates it prints."""

from __future__ import annotations

import numpy as np
import pytest

from trackwalker.logs.scanning.stamps import durations, spread

LOOK = 0.2  # seconds between two looks at a rank's output
TOKENS = 8192


def seen(took: np.ndarray, grain: float) -> np.ndarray:
    """When somebody who looks every `grain` seconds sees the lines of steps that took this long."""
    return np.ceil(np.cumsum(took) / grain) * grain


def test_a_clock_finer_than_the_steps_is_believed_as_it_is() -> None:
    ends = np.array([10.0, 11.0, 12.5, 13.5])
    assert durations(np.array([1, 2, 3, 4]), ends, np.full(4, 100.0)).tolist() == [1.0, 1.0, 1.5, 1.0]


def test_lines_that_skip_steps_share_the_time_between() -> None:
    assert durations(np.array([10, 20, 30]), np.array([0.0, 5.0, 11.0])).tolist() == [0.5, 0.5, 0.6]


def test_lines_seen_at_one_look_share_the_interval_before_it() -> None:
    ends = np.array([1.0, 1.0, 1.2, 1.2, 1.2, 1.2, 1.4])
    assert durations(np.arange(7), ends) == pytest.approx([0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.2])


def test_a_step_that_is_done_again_tells_no_time() -> None:
    took = durations(np.array([5, 6, 5, 6]), np.array([1.0, 2.0, 30.0, 31.0]))
    assert np.isnan(took[2])
    assert took[3] == 1.0


@pytest.mark.parametrize(("grain", "half"), [(LOOK, 150), (1.0, 600)])
def test_rates_tell_short_steps_apart_where_the_clock_cannot(grain: float, half: int) -> None:
    took = np.repeat([0.065, 0.145], half) * np.random.default_rng(1).normal(1.0, 0.01, 2 * half)
    took[200] += 9.0  # a pause that the rate of its step knows of
    found = durations(np.arange(1, 2 * half + 1), seen(took, grain), TOKENS / took)
    assert float(np.median(found[:half])) == pytest.approx(0.065, rel=0.05)
    assert found / np.median(found[:half]) == pytest.approx(took / np.median(took[:half]), rel=1e-6)


def test_rates_are_steadier_than_a_clock_that_is_as_long_as_a_step() -> None:
    took = np.full(200, 0.22)
    found = durations(np.arange(200), seen(took, LOOK), TOKENS / took)
    assert found == pytest.approx(took, rel=0.03)


def test_rates_that_the_clock_contradicts_are_no_measure() -> None:
    took = np.tile(np.repeat([0.05, 0.11], 100), 3)
    averaged = TOKENS / np.full(600, took.mean())  # since the start of the run: they show no change at all
    found = durations(np.arange(600), seen(took, LOOK), averaged)
    assert float(np.mean(found[20:80])) == pytest.approx(0.05, rel=0.1)
    assert float(np.mean(found[120:180])) == pytest.approx(0.11, rel=0.1)


def test_of_steps_seen_together_only_the_last_ended_then() -> None:
    ends = spread(np.array([1.0, 1.2, 1.2, 1.2, 1.4]), np.array([0.1, 0.05, 0.06, 0.07, 0.2]))
    assert ends == pytest.approx([1.0, 1.07, 1.13, 1.2, 1.4])


def test_no_step_ends_before_the_look_that_did_not_see_it() -> None:
    assert spread(np.array([1.0, 1.2, 1.2]), np.array([0.1, 0.1, 0.9])).tolist() == [1.0, 1.0, 1.2]
