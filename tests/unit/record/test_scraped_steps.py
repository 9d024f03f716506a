"""Steps that a scraped gauge tells of: seen after their end, which neither slows the run nor hides its silence."""

from __future__ import annotations

import numpy as np
import pytest

from trackwalker.record.timeline import _anchors, _lateness

INTERVAL = 15.0


class Gauge:
    """A database that holds one scraped `tb_step`."""

    def __init__(self, ends: np.ndarray, until: float) -> None:
        self.times = np.arange(7.0, until, INTERVAL)
        self.values = np.searchsorted(ends, self.times).astype(float) - 1
        self.times, self.values = self.times[self.values >= 0], self.values[self.values >= 0]

    def metrics(self) -> set[str]:
        return {"tb_step"}

    def range(self) -> tuple[float, float]:
        return float(self.times[0]), float(self.times[-1])

    def raw(self, selector: str, start: float, end: float) -> list:
        return [({"host": "n0"}, self.times, self.values)]


@pytest.mark.parametrize("step_s", [6.0, 11.0, 40.0])
def test_ends_lie_within_a_scrape_of_the_truth_and_mostly_far_closer(step_s: float) -> None:
    seconds = step_s * np.exp(0.01 * np.random.default_rng(1).standard_normal(300))
    ends = 100.0 + np.cumsum(seconds)
    seen = _anchors(Gauge(ends, float(ends[-1])))  # type: ignore[arg-type]
    at = np.array(sorted(seen))
    late, grain = _lateness(np.array([seen[i] for i in at]) - np.cumsum(seconds)[at])
    error = late - 100.0
    assert error.min() > -0.001
    assert error.max() < INTERVAL
    assert np.median(error) < 0.2 * INTERVAL
    assert 0.0 < grain < INTERVAL


def test_what_a_silent_run_still_shows_is_no_progress() -> None:
    ends = 100.0 + 9.0 * np.arange(1, 101)
    seen = _anchors(Gauge(ends, float(ends[-1]) + 900.0))  # type: ignore[arg-type]
    assert ends[-1] <= seen[99] < ends[-1] + INTERVAL


def test_a_recorder_that_stamps_each_step_is_believed() -> None:
    waits = np.where(np.arange(200) >= 100, 2.0, 0.0)  # between steps, told by no step line
    late, grain = _lateness(50.0 + np.cumsum(waits))
    assert grain == 0.0
    assert np.array_equal(late, 50.0 + np.cumsum(waits))
