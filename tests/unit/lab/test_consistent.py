"""No sentence contradicts the numbers beside it, and a verdict whose sentences do is graded as groundless."""

from __future__ import annotations

import pytest

from trackwalker.diagnose.causes.evidence import contradictions
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.grade import grade


@pytest.mark.parametrize(
    ("says", "values"),
    [
        ("ranks wait for data at most 0 s", {"n1": 0.883, "n2": 0.88}),  # 0.1.0 said this
        ("n7: hw_x rose from 12 to 3", {}),
        ("n7 retransmits 900 packets/s, the highest other host 2", {"n7": 900.0, "n3": 41.0}),
        ("no GPU's clock stays below the others' (lowest 1900 MHz)", {"n1/0": 1905.0, "n1/3": 1402.0}),
        ("marks rose on 2 of 2 hosts while slow: 80..90/s, at most 3/s before", {"n1": 80.0, "n1/fast": 44.0}),
    ],
)
def test_a_sentence_that_its_numbers_belie_is_found(says: str, values: dict[str, float]) -> None:
    assert contradictions(says, values) != []


@pytest.mark.parametrize(
    ("says", "values"),
    [
        ("ranks wait for data at most 0.88 s", {"n1": 0.883, "n2": 0.1, "n1/fast": 2.0}),
        ("n7: hw_x fell from 12 to 3", {}),
        ("n7 retransmits 900 packets/s, the highest other host 41", {"n7": 900.0, "n3": 41.0}),
        ("marks rose on 2 of 2 hosts while slow: 80..90/s, at most 3/s before", {"n1": 80.0, "n1/fast": 2.9}),
        ("the GPUs' memory was given back (at most 0.002 of it in use)", {"n1": 0.002, "n2": 0.002}),  # whole numbers
    ],
)
def test_a_sentence_that_agrees_with_its_numbers_passes(says: str, values: dict[str, float]) -> None:
    assert contradictions(says, values) == []


def test_a_verdict_that_contradicts_its_numbers_does_not_pass() -> None:
    item = {"id": "e1", "kind": "metric", "source": "q", "says": "at most 0 s", "values": {"n1": 0.9}}
    verdict = {"status": "completed", "outcome": "healthy", "causes": [], "evidence": [item]}
    truth = Truth(outcome="healthy")
    assert not grade(verdict, truth).passed
    assert grade({**verdict, "evidence": [{**item, "says": "at most 0.9 s"}]}, truth).passed
