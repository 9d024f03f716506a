"""What is a hole in a host's samples, and what is only a slower grid."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from trackwalker.telemetry import quality
from trackwalker.telemetry.quality import _least_gap, _nobody_recorded, _silent_for
from trackwalker.telemetry.store import Telemetry

RUN = 7200.0


class Samples:
    """A recording of one series with these times."""

    def __init__(self, times: Any) -> None:
        self._times = np.asarray(times, np.float64)

    def raw(self, selector: str, start: float, end: float) -> list[Any]:
        assert '{host="n\\"1"}' in selector
        return [({}, self._times, self._times)] if len(self._times) else []


def silent(times: Any) -> float:
    return _silent_for(cast(Telemetry, Samples(times)), "hw_procs_running", 'n"1', 0.0, RUN)


EVERY_10 = np.arange(0.0, RUN, 10.0)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (EVERY_10, 0),
        (np.arange(0.0, RUN, 30.0), 0),  # a third of the samples, and no hole
        (np.delete(EVERY_10, np.arange(0, 720, 7)), 0),  # single scrapes lost
        (EVERY_10[(EVERY_10 < 2000) | (EVERY_10 > 4000)], 2020),
        (EVERY_10[EVERY_10 < 5000], 2210),  # it never came back
        ([], RUN),
    ],
    ids=["whole", "slower grid", "lost scrapes", "one hole", "to the end", "nothing"],
)
def test_holes_are_measured_by_the_hosts_own_grid(times: Any, seconds: float) -> None:
    assert silent(times) == pytest.approx(seconds, abs=15)


def test_an_exporter_that_comes_and_goes_has_many_holes() -> None:
    flaky = EVERY_10[(EVERY_10 < 2000) | (EVERY_10 > 6000) | (EVERY_10 % 200 == 0)]
    assert silent(flaky) > 3500 > _least_gap(0.0, RUN)


def test_a_short_hole_of_a_long_run_is_no_gap() -> None:
    assert _least_gap(0.0, 1800.0) == 600
    assert _least_gap(0.0, 36_000.0) == 5400


@pytest.mark.parametrize(("seconds", "told"), [(480.0, True), (240.0, False)], ids=["eight minutes", "four minutes"])
def test_a_hole_in_everybodys_recording_is_no_chance(
    monkeypatch: pytest.MonkeyPatch, seconds: float, told: bool
) -> None:
    monkeypatch.setattr(quality, "find_gaps", lambda telemetry: [(3000.0, 3000.0 + seconds)])
    found = _nobody_recorded(cast(Telemetry, Samples([])), "hw_procs_running", 0.0, RUN)
    assert (found is not None) == told, "five minutes are what Prometheus looks back, a twentieth of this run is six"
    assert found is None or (not found.ok and found.hosts == ())
