"""Grades: what counts as right, and what fails a case outright."""

from __future__ import annotations

from typing import Any

import pytest

from trackwalker.lab.scenario import TrueCause, Truth
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.scoring.measures import MEASURES, Share
from trackwalker.lab.scoring.results import CaseResult

TRUTH = Truth.model_validate(
    {
        "status": ["cancelled"],
        "outcome": "incident",
        "roots": [{"cause": "rdma-degradation", "hosts": ["h1", "h2"], "devices": ["h1/ionic_3"]}],
        "onset_step": 97,
        "must_not": ["oom-host", "host:h9"],
    }
)


def verdict(**changed: Any) -> dict[str, Any]:
    root = {
        "cause": "rdma-degradation",
        "role": "root",
        "hosts": ["h2", "h1"],
        "devices": ["h1/ionic_3"],
        "onset": {"step": 99},
        "evidence": ["e1"],
    }
    base: dict[str, Any] = {"status": "cancelled", "outcome": "incident", "causes": [root], "evidence": [{"id": "e1"}]}
    return base | changed


def cause(name: str, *hosts: str, role: str = "root") -> dict[str, Any]:
    return {"cause": name, "role": role, "hosts": list(hosts), "evidence": ["e1"]}


def test_the_right_verdict_is_right() -> None:
    result = grade(verdict(), TRUTH)
    assert result.passed
    assert result.status
    assert result.devices
    assert result.onset_error_steps == 2


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"outcome": "expected"}, "outcome"),
        ({"causes": []}, "roots"),
        ({"causes": [cause("rdma-degradation", "h1")]}, "hosts"),
        ({"causes": [cause("rdma-degradation", "h1", "h2", "h3")]}, "hosts"),
        ({"causes": [cause("fabric-congestion", "h1", "h2")]}, "roots"),
        ({"causes": [cause("rdma-degradation", "h1", "h2"), cause("input-stall")]}, "roots"),
        ({"causes": [cause("rdma-degradation", "h1", "h2", role="mechanism")]}, "roots"),
    ],
)
def test_one_thing_wrong_fails_the_case(changed: dict[str, Any], wrong: str) -> None:
    result = grade(verdict(**changed), TRUTH)
    assert not result.passed
    assert not getattr(result, wrong)


def test_forbidden_conclusions() -> None:
    assert grade(verdict(causes=[cause("oom-host")]), TRUTH).forbidden == ["oom-host"]
    assert grade(verdict(causes=[cause("rdma-degradation", "h9")]), TRUTH).forbidden == ["host:h9"]
    drain = [{"do": "drain-node", "hosts": ["h9"], "needs_approval": True}]
    result = grade(verdict(actions=drain), TRUTH)
    assert result.forbidden == ["host:h9"], "an action accuses as well"
    assert not result.passed


def test_claims_without_ground_fail() -> None:
    assert grade(verdict(evidence=[]), TRUTH).ungrounded == ["rdma-degradation has no evidence"]
    rash = [{"do": "restart-job", "hosts": []}]
    assert grade(verdict(actions=rash), TRUTH).ungrounded == ["restart-job without approval"]


def test_no_verdict_is_wrong_and_forbids_nothing() -> None:
    result = grade(None, TRUTH)
    assert not result.passed
    assert result.forbidden == []


def test_abstaining_is_right_only_where_the_evidence_may_be_gone() -> None:
    said = verdict(outcome="insufficient-evidence", causes=[])
    assert not grade(said, TRUTH).passed
    maybe = TRUTH.model_copy(update={"or_abstain": True})
    assert grade(said, maybe).passed
    assert grade(verdict(), maybe).passed
    assert not grade(verdict(outcome="insufficient-evidence", causes=[cause("oom-host")]), maybe).passed


def test_another_honest_answer_counts() -> None:
    both = TRUTH.model_copy(update={"alternatives": [Truth(outcome="insufficient-evidence")]})
    assert grade(verdict(outcome="insufficient-evidence", causes=[]), both).passed
    assert not grade(verdict(outcome="healthy", causes=[]), both).passed


def result_of(truth: Truth, said: dict[str, Any] | None) -> CaseResult:
    g = grade(said, truth)
    return CaseResult(
        tool="t", family="f", split="tune", group="g", seed=1, truth=truth, grade=g, passed=g.passed, seconds=1.0
    )


def test_measures_ask_only_where_they_can() -> None:
    healthy = Truth(outcome="healthy")
    cases = [
        result_of(TRUTH, verdict()),
        result_of(healthy, {"status": "completed", "outcome": "healthy"}),
        result_of(healthy, verdict()),
        result_of(Truth(outcome="insufficient-evidence"), verdict()),
    ]
    shares = {m.name: m.of(cases) for m in MEASURES}
    assert shares["right in everything"] == Share(2, 4)
    assert shares["root cause"] == Share(1, 1)
    assert shares["culprit hosts exact"] == Share(1, 1)
    assert shares["onset within 5 steps"] == Share(1, 1)
    assert shares["correct abstention"] == Share(0, 1)
    assert shares["false accusations on healthy or expected"] == Share(1, 2)
    assert shares["forbidden conclusions"] == Share(0, 4)


@pytest.mark.parametrize(
    ("right", "of", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0)]
)
def test_intervals_are_wilsons(right: int, of: int, low: float, high: float) -> None:
    assert Share(right, of).interval == pytest.approx((low, high), abs=1e-4)


def test_what_is_as_it_should_be_need_not_name_anybody() -> None:
    calm = Truth(outcome="expected", roots=[TrueCause(cause="telemetry-gap", hosts=["h1"])])
    for hosts, right in ((["h1"], True), ([], True), (["h2"], False)):
        found = verdict(outcome="expected", causes=[cause("telemetry-gap", *hosts)])
        assert grade(found, calm).passed == right
