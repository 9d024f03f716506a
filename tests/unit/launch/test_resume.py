"""Whether a run gets another attempt: by the class of its failure, what it had before, and the budget."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import typer

from trackwalker.cli.commands import load
from trackwalker.cli.common.words import before
from trackwalker.cli.launching import submit
from trackwalker.job.causes import Retry
from trackwalker.job.journal import Journal
from trackwalker.job.layout import Job
from trackwalker.launch.attempts import _with_nodes
from trackwalker.launch.resume import RULES, Ending, classify, decide
from trackwalker.watch.supervise.resume import _by_nodes


def ended(cause: str = "", state: str = "failed", status: str = "failed", hosts: tuple[str, ...] = ()) -> Ending:
    return Ending(state, status, cause, hosts, "a line")


@pytest.mark.parametrize(
    ("ending", "failure"),
    [
        (ended("oom-gpu"), "oom"),
        (ended(state="oom"), "oom"),
        (ended("loss-divergence"), "nan"),
        (ended("config-error"), "config"),
        (ended("xla-compile-fail"), "config"),
        (ended("collective-hang", status="hanging"), "hang"),
        (ended("collective-hang", state="timeout", status="cancelled"), "hang"),
        (ended("walltime", state="timeout", status="cancelled"), "time-limit"),
        (ended("gpu-hardware-fault", hosts=("n3",)), "node"),
        (ended("gpu-hardware-fault"), "crash"),
        (ended("peer-died", state="node-fail"), "node-fail"),
        (ended("user-cancel", state="preempted", status="cancelled"), "preempted"),
        (ended("user-cancel", state="cancelled", status="cancelled"), "cancelled"),
        (ended("collective-hang", state="cancelled", status="cancelled"), "cancelled"),
        (ended("python-exception"), "crash"),
        (ended("segfault"), "crash"),
        (ended(status="unknown-death"), "crash"),
        (ended("python-exception", status="soft-success"), "completed"),
        (ended(state="completed", status="completed"), "completed"),
    ],
)
def test_an_ending_has_a_class(ending: Ending, failure: str) -> None:
    assert classify(ending) == failure


@pytest.mark.parametrize("failure", ["oom-gpu", "loss-divergence", "config-error", "storage-full"])
def test_what_a_retry_cannot_mend_is_never_retried(failure: str) -> None:
    decision = decide(ended(failure), [], budget=5)
    assert not decision.resume
    assert decision.why


def test_cancelled_and_completed_runs_are_left_alone() -> None:
    assert not decide(ended(state="cancelled", status="cancelled"), [], 5).resume
    assert not decide(ended(status="soft-success"), [], 5).resume


def test_a_hang_is_tried_once_more_on_the_same_nodes() -> None:
    hang = ended("collective-hang", status="hanging", hosts=("n3",))
    first = decide(hang, [], 3)
    assert (first.resume, first.same_nodes, first.exclude) == (True, True, [])
    assert not decide(hang, ["hang"], 3).resume
    assert decide(hang, ["node"], 3).resume, "only hangs count against a hang"


def test_a_nodes_fault_leaves_the_node_out_and_keeps_out_those_before_it() -> None:
    decision = decide(ended("rdma-link-failure", hosts=("n7", "n9")), ["node"], 3, ["n2", "n7"])
    assert decision.resume
    assert decision.exclude == ["n2", "n7", "n9"]


def test_an_unknown_crash_is_tried_once_more() -> None:
    assert decide(ended("segfault"), [], 3).resume
    again = decide(ended("segfault"), ["crash"], 3)
    assert not again.resume


def test_the_budget_bounds_every_class() -> None:
    assert decide(ended(state="preempted"), ["preempted"] * 2, 3).resume
    spent = decide(ended(state="preempted"), ["preempted"] * 3, 3)
    assert not spent.resume
    assert "used up" in spent.why


def test_every_class_that_a_cause_may_have_has_a_rule() -> None:
    assert set(get_args(Retry)) <= set(RULES)


def test_a_new_job_leaves_out_what_the_old_one_did_and_more() -> None:
    old = ["--nodes=2", "--exclude=n1", "--nodelist=n[1-4]"]
    assert _with_nodes(old, ["n3"], "") == ["--nodes=2", "--nodelist=n[1-4]", "--exclude=n1,n3"]
    assert _with_nodes(["--nodes=2"], [], "n[2-3]") == ["--nodes=2", "--nodelist=n[2-3]"]
    assert _with_nodes(old, [], "n[2-3]") == ["--nodes=2", "--exclude=n1", "--nodelist=n[2-3]"]


def told(tmp_path: Path, *events: dict[str, object]) -> Ending | None:
    """What the journal makes of an ending that the log alone calls a crash."""
    journal = Journal(tmp_path / "events.jsonl")
    for event in events:
        journal.append(event)
    return _by_nodes(Job("8308", None, tmp_path), ended("python-exception"))


def stage_end(**data: object) -> dict[str, object]:
    return {"kind": "stage-end", "stage": "preflight", "data": {"ok": False, "reason": "Preflight FAILED", **data}}


def test_a_check_that_failed_on_one_node_is_that_nodes_fault(tmp_path: Path) -> None:
    found = told(tmp_path, {"kind": "attempt-begin"}, stage_end(hosts=["n3"], nodes=4))
    assert found is not None
    decision = decide(found, [], 3)
    assert (decision.failure, decision.exclude) == ("node", ["n3"])


def test_a_check_that_failed_everywhere_is_no_nodes_fault(tmp_path: Path) -> None:
    found = told(tmp_path, {"kind": "attempt-begin"}, stage_end(hosts=["n1", "n2"], nodes=2))
    assert found is not None
    assert not decide(found, [], 3).resume


def test_nodes_that_never_reported_are_left_out(tmp_path: Path) -> None:
    found = told(tmp_path, {"kind": "attempt-begin"}, {"kind": "run-end", "data": {"exit": 1, "missing": ["n2"]}})
    assert found is not None
    assert decide(found, [], 3).exclude == ["n2"]


def test_an_earlier_attempts_trouble_is_not_this_ones(tmp_path: Path) -> None:
    assert told(tmp_path, stage_end(hosts=["n3"], nodes=4), {"kind": "attempt-begin"}) is None


@pytest.mark.parametrize(
    ("words", "budget"),
    [(["--auto-resume", "-N", "2"], 3), (["--auto-resume=5"], 5), (["--auto-resume", "2", "-N2"], 2), (["-N2"], 0)],
)
def test_the_budget_may_stand_alone(words: list[str], budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[str]]] = []

    def catch(ctx: typer.Context, model: str, options: submit.Wanted, *rest: object) -> int:
        seen.append((options.auto_resume, before(ctx)))
        return 0

    monkeypatch.setitem(submit._TO, "slurm", catch)
    load("submit").main(["tiny", *words, "--", "--auto-resume"], standalone_mode=False)
    ((number, rest),) = seen
    assert number == budget
    assert not [word for word in rest if "resume" in word]
