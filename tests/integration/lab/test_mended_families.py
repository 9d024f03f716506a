"""Incidents of the lab that the engine once got wrong at first sight, each for a reason of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.simulate import simulate

WHY = {
    "mount-silent": "one host's mount is away: the others spin, so utilisation is high nearly everywhere",
    "remapped-row": "a driver message that the log explains as a retired row",
    "scraper-away": "no host is recorded for a while: a hole that no comparison of hosts shows",
    "array-rebuilds": "most saves are slow, so the median of their costs is no measure of a usual one",
    "bad-shard-index": "the seconds between an exception and the end are no hang",
    "killed-by-whom": "only the rank's own log tells that it was killed",
    "reader-in-d-state": "one host's GPUs idle while its readers are blocked",
    "scan-every-host": "the CPUs of all hosts are taken at once: nobody stands out",
}


# One for each kind of source that decides: the recording, the log, a rank's own log.
KEPT = ("scraper-away", "bad-shard-index", "killed-by-whom")
MORE = pytest.mark.long(reason="a world of its full size each; a landing keeps one for each kind of source")


@pytest.mark.parametrize("family", [f if f in KEPT else pytest.param(f, marks=MORE) for f in WHY])
def test_what_was_wrong_once_is_right(tmp_path: Path, family: str) -> None:
    made = simulate(load_scenario(family), tmp_path)
    graded = grade(diagnose(resolve(str(made.job), made.workspace)).verdict.model_dump(by_alias=True), made.truth)
    assert graded.passed, f"{WHY[family]}; it says {graded.said}"
