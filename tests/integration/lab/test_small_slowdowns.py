"""A slowdown of a percent or two in a quiet run: named where a measured cause fits it, left alone where none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Verdict
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import Scenario, load_scenario
from trackwalker.lab.simulate import simulate


def verdict_of(scenario: Scenario, out: Path) -> Verdict:
    made = simulate(scenario, out)
    return diagnose(resolve(str(made.job), made.workspace)).verdict


@pytest.mark.parametrize(
    ("family", "cause"),
    [
        pytest.param(
            "head-hog-slight",
            "cpu-contention",
            marks=pytest.mark.long(reason="a world of its full size; a landing keeps the NIC, with and without cause"),
        ),
        ("one-percent-nic", "rdma-degradation"),
    ],
)
def test_a_percent_with_a_measured_cause_is_an_incident(family: str, cause: str, tmp_path: Path) -> None:
    verdict = verdict_of(load_scenario(family), tmp_path)
    assert verdict.outcome == "incident"
    (root,) = [c for c in verdict.causes if c.role == "root"]
    assert root.cause == cause
    assert len(root.hosts) == 1
    assert root.magnitude is not None
    assert -0.03 < root.magnitude.change < -0.01


def test_a_percent_that_nothing_measured_explains_is_no_incident(tmp_path: Path) -> None:
    scenario = load_scenario("one-percent-nic")
    unseen = scenario.model_copy(update={"faults": [{**f, "retx": 0.0} for f in scenario.faults]})
    verdict = verdict_of(unseen, tmp_path)
    assert verdict.outcome == "healthy"
    assert verdict.causes == []
