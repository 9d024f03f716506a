"""Saves that take longer from one on, and saves that only vary."""

from __future__ import annotations

import numpy as np
import pytest

from trackwalker.diagnose.episodes.course import _slow_from_one_on
from trackwalker.record.timeline import Timeline


@pytest.mark.parametrize(
    ("costs", "seconds", "found"),
    [
        ([15, 15, 16, 14, 37, 36, 38, 35], 6.0, True),
        ([15, 15, 16, 14, 37, 36, 38, 35], 60.0, False),  # a hundredth of the run
        ([15, 24, 14, 22, 37, 20, 38, 35], 6.0, False),  # one of the later ones is as quick as before
        ([15, 15, 16, 14, 23, 22, 24, 23], 6.0, False),
        ([15, 14, 37, 36], 6.0, False),  # too few on either side
    ],
)
def test_all_saves_behind_one_are_longer_than_any_before(costs: list[float], seconds: float, found: bool) -> None:
    steps = np.arange(20 * len(costs))
    timeline = Timeline(steps, seconds * (steps + 1.0), np.full(len(steps), seconds), np.ones(len(steps)), True, "x")
    assert (_slow_from_one_on(costs, timeline) is not None) == found
