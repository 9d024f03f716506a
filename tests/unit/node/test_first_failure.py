"""Which failure a run is laid to, when every node has told how its ranks ended."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trackwalker.node.agent import ranks
from trackwalker.node.agent.outcome import Course, Suspects, end_of, judge
from trackwalker.node.agent.peers import RankEnd
from trackwalker.node.agent.spec import AgentSpec, RankSpec
from trackwalker.node.evidence import coredump

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


class Seat:
    """A rank as the judge sees it."""

    def __init__(self, number: int, code: int | None, failed: float, ended: float | None) -> None:
        self.spec = SimpleNamespace(rank=number, host=f"n{number}")
        self.exit, self.failed, self.ended = code, failed, ended


def test_who_still_writes_its_core_failed_before_who_is_already_gone() -> None:
    crashed, bereaved = Seat(0, None, 100.0, None), Seat(1, 1, 102.0, 102.0)
    suspects = Suspects([bereaved])  # type: ignore[list-item]
    both: list[Any] = [crashed, bereaved]
    assert suspects.guilty(103.0, both) is None  # the core is waited for
    crashed.exit, crashed.ended = 139, 108.0
    suspects.waiting.append(crashed)  # type: ignore[arg-type]
    assert suspects.guilty(108.1, both) is None
    guilty = suspects.guilty(108.5, both)
    assert guilty is not None
    assert end_of(guilty) == RankEnd(0, "n0", 139, 100.0, "killed by SIGSEGV")


def test_a_core_that_takes_minutes_is_not_waited_for_and_still_named() -> None:
    crashed, bereaved = Seat(0, None, 100.0, None), Seat(1, 1, 102.0, 102.0)
    found = Suspects([bereaved]).guilty(113.0, [crashed, bereaved])  # type: ignore[list-item]
    assert found is not None
    assert found.spec.rank == 1  # the others are ended
    crashed.exit, crashed.ended = 139, 400.0
    ends: list[RankEnd] = [end_of(seat) for seat in (crashed, bereaved)]  # type: ignore[arg-type]
    assert "FIRST_FAILURE rank=0 host=n0 exit=139" in judge(SPEC, course(*ends, bad=ends[1])).text


def test_a_crash_after_the_first_failure_is_its_consequence() -> None:
    first, aborts = Seat(1, 1, 102.0, 102.0), Seat(0, None, 102.1, None)
    found = Suspects([first]).guilty(102.3, [first, aborts])  # type: ignore[list-item]
    assert found is first  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(("after", "guilty"), [(0.05, 1), (0.5, 0)], ids=["within a moment", "later"])
def test_of_ranks_that_fall_within_a_moment_the_killed_one_was_first(after: float, guilty: int) -> None:
    """A real run on a busy machine: the peer's lost connection was written down before the kill it came from."""
    peer, killed = Seat(0, 1, 100.0, 100.0), Seat(1, 137, 100.0 + after, 100.0 + after)
    found = Suspects([peer, killed]).guilty(101.0, [peer, killed])  # type: ignore[list-item]
    assert found is not None
    assert found.spec.rank == guilty
    outcome = judge(SPEC, course(end(0, 1, 100.0), end(1, 137, 100.0 + after)))
    assert outcome.code == (137 if guilty else 1)


@pytest.mark.starts_processes
def test_a_core_that_is_being_written_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if coredump.read_pattern().startswith("|") or resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("the kernel writes no core files here")
    monkeypatch.setattr(ranks, "_LOOK_S", 0.0)
    program = (
        "import ctypes, os, resource; h = resource.getrlimit(4)[1]; resource.setrlimit(4, (h, h));"
        "held = b'x' * (256 << 20); ctypes.string_at(0)"
    )
    spec = RankSpec(0, "n1", [sys.executable, "-c", program], cwd=str(tmp_path))
    rank = ranks.Rank(spec, tmp_path)
    rank.launch(dict(os.environ))
    while rank.poll() is None:
        time.sleep(0.002)
    assert rank.exit == 139
    assert rank.dumps is not None
    assert rank.failed == rank.dumps <= (rank.ended or 0.0)
