"""Calibration: what a confidence is worth, and that more support never means less confidence."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trackwalker.diagnose.causes.confidence import Past, calibration, certainty, confidence, shown, support
from trackwalker.errors import UsageError
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.calibration import (
    Stated,
    brier,
    calibrate,
    calibration_error,
    fit,
    fit_weights,
    left_out,
    reliability,
)
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.scoring.results import Results

TRUTH = Truth.model_validate(
    {
        "outcome": "incident",
        "roots": [{"cause": "cpu-contention", "hosts": ["h1"]}],
        "also_roots": ["input-stall"],
        "alternatives": [{"outcome": "incident", "roots": [{"cause": "gpu-power-cap", "hosts": ["h2"]}]}],
    }
)


def claim(sure: float, right: bool, family: str = "f", supported: float = 0.0) -> Stated:
    return Stated(sure, supported, right, family)


def test_scores_of_known_claims() -> None:
    claims = [claim(0.9, True), claim(0.9, True), claim(0.9, False), claim(0.5, False)]
    assert brier(claims) == pytest.approx((0.01 + 0.01 + 0.81 + 0.25) / 4)
    assert calibration_error(claims) == pytest.approx((abs(2.7 - 2) + 0.5) / 4)
    table = reliability("t", claims)
    assert [row[0] for row in table.rows] == ["0.00-0.60", "0.90-0.95"]
    assert table.rows[1][3] == "0.667"


def test_better_supported_claims_never_get_less_confidence() -> None:
    right = {1.0: 0.5, 2.0: 0.9, 3.0: 0.7, 4.0: 1.0}  # 3 is worse than 2: they are joined
    claims = [claim(0, i < 30 * share, f"f{i}", s) for s, share in right.items() for i in range(30)]
    levels = fit(claims)
    assert [level.support for level in levels] == [1.0, 2.0, 4.0]
    assert all(a.confidence < b.confidence for a, b in pairwise(levels))
    assert levels[-1].confidence < 1.0  # thirty families are no certainty


def test_a_family_counts_once_however_often_it_was_asked() -> None:
    many = [claim(0, True, "loud", 1.0)] * 500 + [claim(0, False, f"f{i}", 1.0) for i in range(9)]
    assert fit(many)[0].confidence < 0.2


def test_few_families_make_no_level_of_their_own() -> None:
    claims = [claim(0, i % 2 == 0, f"f{i}", 1.0) for i in range(20)] + [claim(0, True, "g", 2.0)]
    assert len(fit(claims)) == 1


def test_too_few_families_are_refused() -> None:
    with pytest.raises(UsageError, match="0 families made claims"):
        calibrate([Results(version="1", suite=["smoke"], cases=[])])


@pytest.mark.parametrize(
    ("name", "hosts", "right"),
    [
        ("cpu-contention", ["h1"], True),
        ("cpu-contention", ["h1", "h3"], False),
        ("input-stall", [], True),  # true as well
        ("gpu-power-cap", ["h2"], True),  # another right answer
        ("oom-gpu", [], False),
    ],
)
def test_a_claim_is_right_by_cause_and_hosts(name: str, hosts: list[str], right: bool) -> None:
    cause = {"cause": name, "role": "root", "hosts": hosts, "confidence": 0.8, "evidence": ["e1"]}
    victim = {"cause": "oom-gpu", "role": "consequence", "confidence": 0.9, "evidence": ["e1"]}
    said = {"outcome": "incident", "causes": [cause, victim], "evidence": [{"id": "e1", "kind": "metric"}]}
    (only,) = grade(said, TRUTH).claims
    assert (only.cause, only.confidence, only.right) == (name, 0.8, right)


def test_the_shipped_table_rises_and_never_says_never() -> None:
    levels = calibration().levels
    assert all(a.support < b.support and a.confidence < b.confidence for a, b in pairwise(levels))
    assert all(0.0 < level.confidence < 1.0 for level in levels)
    assert "lab calibrate" in calibration().made_by
    asked = [confidence(s / 4) for s in range(-20, 80)]
    assert asked == sorted(asked)


def test_more_evidence_supports_more_and_doubts_support_less() -> None:
    evidence = [{"id": f"e{i}", "kind": "metric"} for i in range(3)]

    def weight(count: int, **more: object) -> float:
        cause = {"evidence": [f"e{i}" for i in range(count)]}
        return support({"evidence": evidence, **more}, cause)

    assert weight(3) > weight(1)
    assert weight(3) > weight(3, data_quality=[{"check": "gaps", "ok": False}])
    assert weight(3) > weight(3, untestable=[{"cause": "input-stall"}] * 6)


def test_what_nearly_everything_leads_to_is_a_less_certain_root() -> None:
    def sure(supported: float, cause: str, rivals: int, hosts: int) -> float:
        return certainty(calibration().weights, shown(supported, cause, rivals, hosts))

    assert sure(3.0, "gpu-hardware-fault", 0, 1) > sure(3.0, "collective-hang", 0, 1)  # of most things
    assert sure(3.0, "oom-gpu", 0, 1) > sure(3.0, "oom-gpu", 1, 1)  # another root beside it
    assert sure(3.0, "gpu-power-cap", 0, 1) > sure(3.0, "gpu-power-cap", 0, 0)  # nobody is told apart
    assert sure(3.0, "gpu-power-cap", 0, 1) > sure(3.0, "gpu-power-cap", 0, 8)  # eight at once are seldom all guilty
    assert sure(9.0, "oom-gpu", 0, 1) == sure(4.0, "oom-gpu", 0, 1)  # more of the same adds nothing


def test_weights_follow_what_tells_right_from_wrong_in_other_sets() -> None:
    claims = [
        Stated(
            0.9, 0.0, (i % 10 > 2) if lone else (i % 10 > 7), f"{name}-{lone}{i}", {"lone": float(lone), "dull": 1.0}
        )
        for name in ("a", "b", "c")
        for lone in (True, False)
        for i in range(40)
    ]
    weights = fit_weights(claims)
    assert weights["lone"] > 1.5, "lone claims are right in 7 of 10, others in 2 of 10"
    assert weights["dull"] == 0.0, "what all claims show says nothing"
    unseen = left_out(claims)
    assert sorted({c.confidence for c in unseen}) == [pytest.approx(0.2, abs=0.05), pytest.approx(0.7, abs=0.05)]


def test_a_cause_that_was_often_wrong_is_believed_less_and_a_rare_one_as_its_group() -> None:
    often = {"collective-hang": (40, 80), "segfault": (0, 0), "oom-gpu": (90, 100), "rdma-degradation": (99, 100)}
    past = Past(often)
    assert past.odds("collective-hang") < past.odds("oom-gpu") < past.odds("rdma-degradation")
    assert past.odds("segfault") == pytest.approx(past.odds("nccl-error"))  # both are crashes that nobody had claimed
    assert past.odds("cpu-contention") > past.odds("dataloader-hang")  # by their groups: slow, stop


def test_a_doubt_never_makes_surer() -> None:
    claims = [
        Stated(0.9, 0.0, i % 4 > 0 or behind, f"{name}-{behind}{i}", {"support": i % 3, "behind": float(behind)})
        for name in ("a", "b")
        for behind in (True, False)
        for i in range(40)
    ]
    assert fit_weights(claims)["behind"] == 0.0
