"""Which failure a run is laid to, when every node has told how its ranks ended."""

from __future__ import annotations

from pathlib import Path

from trackwalker.node.crew import RankEnd
from trackwalker.node.outcome import Course, judge
from trackwalker.node.spec import AgentSpec

SPEC = AgentSpec("8308", "JAX-tiny", "tiny", "n1", Path("job"), None, [], world=3, nodes=3, steps=5)


def end(rank: int, code: int, at: float) -> RankEnd:
    return RankEnd(rank, f"n{rank + 1}", code, at, f"code {code}")


def course(*ends: RankEnd, bad: RankEnd | None = None, stopped: int | None = None, last: int | None = None) -> Course:
    return Course(list(ends), bad, stopped, False, False, [], 7, last)


def test_what_another_node_told_later_may_have_come_first() -> None:
    here, there = end(0, 1, 10.05), end(1, 137, 10.0)
    outcome = judge(SPEC, course(here, there, end(2, 143, 9.0), bad=here))
    assert outcome.first == there
    assert outcome.code == 137
    assert "FIRST_FAILURE rank=1 host=n2 exit=137" in outcome.text


def test_a_failure_of_the_last_moment_is_no_success() -> None:
    outcome = judge(SPEC, course(end(0, 0, 10.0), end(1, 1, 9.9)))
    assert (outcome.code, outcome.first) == (1, end(1, 1, 9.9))
    assert "SUCCESS" not in outcome.text


def test_a_cancelled_run_accuses_nobody() -> None:
    outcome = judge(SPEC, course(end(0, 143, 10.0), end(1, 1, 10.1), stopped=15))
    assert (outcome.code, outcome.first) == (143, None)


def test_r24_steps_that_were_all_done_are_told() -> None:
    bad = end(0, 1, 10.0)
    assert (
        judge(SPEC, course(bad, bad=bad, last=4)).reason == "Training FAILED (exit=1) after all 5 steps were completed"
    )
    assert judge(SPEC, course(bad, bad=bad, last=3)).reason == "Training FAILED (exit=1)"
