"""Holes of one host's recording: in the middle and at the end they count, an exporter that begins late has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trackwalker.telemetry.quality import _silent_for


class Recorded:
    """A recording of one host with samples at these times."""

    def __init__(self, times: list[int]) -> None:
        self.times = np.array(times, float)

    def raw(self, *_: Any) -> list[Any]:
        return [({"host": "a"}, self.times, self.times)]


@pytest.mark.parametrize(
    ("times", "silent"),
    [
        (range(0, 8000, 30), 0.0),
        (range(1500, 8000, 30), 0.0),
        ([*range(0, 3000, 30), *range(4500, 8000, 30)], 1530.0),
        (range(0, 6500, 30), 1520.0),
    ],
    ids=["whole", "begins late", "hole", "ends early"],
)
def test_seconds_in_holes(times: Any, silent: float) -> None:
    recorded: Any = Recorded(list(times))
    assert _silent_for(recorded, "hw_procs_running", "a", 0.0, 8000.0) == pytest.approx(silent, abs=31.0)
