"""One answer about a job's end, from the scheduler's word, the agent's record and the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trackwalker.job.ending import Told, decide, of_events, of_log, told_by, word_of
from trackwalker.job.layout import Job
from trackwalker.job.slurm.parse import gone, lost, prolog
from trackwalker.job.slurm.states import advice, make, never_clears
from trackwalker.node.agent.outcome import PLAIN, cancelled, reason_of

STEP = b"completed step: 7, seconds: 0.1, loss: 2.0\n"
DUE = b"slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-16T12:20:19 DUE TO %s ***\n"


@pytest.mark.parametrize(
    ("raw", "told", "state", "where"),
    [
        ("TIMEOUT", Told(code=143, reason="CANCELLED (scancel / SIGTERM)"), "timeout", ""),
        ("FAILED", Told(memory=True), "oom", ""),
        ("FAILED", Told(task=("n2", 1)), "failed", "n2"),
        ("NODE_FAIL", Told(lost=("n1",)), "node-fail", "n1"),
        ("COMPLETED", Told(task=("n2", 1)), "failed", "n2"),  # the script went on behind a failed srun
        ("COMPLETED", Told(code=0), "completed", ""),
        ("RUNNING", Told(code=1), "running", ""),  # requeued: the record is the last attempt's
        ("PENDING", Told(word="node-fail"), "pending", ""),
    ],
)
def test_the_schedulers_word_comes_first(raw: str, told: Told, state: str, where: str) -> None:
    seen = decide(make("7", raw), told)
    assert (seen.state, seen.where) == (state, where)


def test_who_does_not_answer_ends_nothing_and_who_forgot_is_replaced_by_the_record() -> None:
    unknown = make("7", "")
    assert not decide(unknown, Told(word="timeout", cancelled=True)).ended
    assert decide(unknown, Told(code=0)).state == "completed"
    assert decide(None, Told(code=124, reason="CANCELLED DUE TO TIME LIMIT", word="timeout")).exit == 124
    assert decide(None, Told(code=143, reason="CANCELLED (scancel / SIGTERM)")).state == "cancelled"
    assert decide(None, Told(code=143, word="pending", reason="CANCELLED DUE TO JOB REQUEUE")).state == "forgotten"
    assert decide(None, Told()).state == "forgotten"
    assert decide(None, Told(near=True)).state == "timeout"  # killed before it could say anything else
    assert decide(None, Told(near=True, cancelled=True)).state == "cancelled"  # in its last minute


@pytest.mark.parametrize(
    ("tail", "told"),
    [
        (STEP + DUE % b"TIME LIMIT" + STEP, Told(word="timeout", cancelled=True)),
        (STEP + b"srun: error: n2: task 1: Exited with exit code 1\n", Told(task=("n2", 1))),
        (STEP + b"srun: error: n2: task 1: Killed\nsrun: error: n3: task 2: Aborted\n", Told(task=("", 137))),
        (STEP + DUE % b"NODE FAILURE" + b"srun: error: n1: task 0: Exited with exit code 1\n",
         Told(word="node-fail", cancelled=True)),
        (STEP + b"srun: error: Node failure on n8\n", Told(word="node-fail", lost=("n8",))),
        (DUE % b"JOB REQUEUE" + b"srun: error: n1: task 0: Exited with exit code 1\n" + STEP, Told()),
        (STEP + DUE % b"JOB REQUEUE", Told(word="pending", cancelled=True)),
        (b"srun: error: n2: task 1: Exited with exit code 1\n" + STEP, Told()),  # the script tried again
        (STEP + b"TIME_LIMIT_NEAR: Slurm ends job 7 at its time limit\n" + STEP, Told(near=True)),
        (STEP + b"0: TIME_LIMIT_NEAR: Slurm ends job 7 at its time limit\n", Told()),  # a rank's words
    ],
)  # fmt: skip
def test_the_log_tells_what_slurm_and_srun_wrote(tail: bytes, told: Told) -> None:
    assert of_log(tail) == told


def test_a_lost_first_node_is_named_by_the_agents_that_spoke(tmp_path: Path) -> None:
    begin = {"v": 1, "t": 1.0, "kind": "attempt-begin", "node": "n1", "data": {"attempt": 1, "nodes": 2}}
    (tmp_path / "events.jsonl").write_text(json.dumps(begin) + "\n")
    job = Job("7", None, tmp_path)
    assert told_by(job).lost == ()
    ended = tmp_path / "agent" / "attempt-1" / "ended"
    ended.mkdir(parents=True)
    (ended / "1.json").write_text("{}")
    assert told_by(job).lost == ("n1",)
    assert decide(make("7", "NODE_FAIL"), told_by(job)).meaning == "lost n1"


def test_only_the_last_attempt_speaks() -> None:
    end = {"kind": "run-end", "data": {"exit": 1, "reason": "Training FAILED (exit=1)", "missing": ["n2"]}}
    assert of_events([end]).lost == ("n2",)
    killed = [{"kind": "kernel-kill", "rank": 2}, {"kind": "first-failure", "rank": 2}]
    assert of_events(killed).memory


@pytest.mark.parametrize(
    ("answer", "attempt", "reason"),
    [
        ("JobState=COMPLETING Reason=TimeLimit PreemptTime=None Restarts=0", 0, "CANCELLED DUE TO TIME LIMIT"),
        ("JobState=COMPLETING Reason=NodeDown Restarts=0", 0, "CANCELLED DUE TO NODE FAILURE"),
        ("JobState=COMPLETING Reason=None PreemptTime=2026-11-16T12:00:00", 0, "CANCELLED DUE TO PREEMPTION"),
        ("JobState=COMPLETING Reason=None Restarts=1 PreemptTime=None", 0, "CANCELLED DUE TO JOB REQUEUE"),
        ("JobState=COMPLETING Reason=None Restarts=1 PreemptTime=None", 1, PLAIN),
        ("JobState=CANCELLED Reason=None Restarts=0", 0, PLAIN),
        ("JobState=RUNNING Reason=None Restarts=0", 0, ""),  # somebody signalled our processes
    ],
)
def test_the_agent_asks_why_it_is_ended(answer: str, attempt: int, reason: str) -> None:
    assert reason_of(answer, attempt) == reason
    code, words = cancelled(15, reason, warned=False)
    assert words == (reason or PLAIN)
    assert words != PLAIN or code == 143
    # Warned of the limit: only a Slurm that says nothing leaves it open, and then the warning counts.
    assert cancelled(15, reason, warned=True)[1] == (reason or "CANCELLED DUE TO TIME LIMIT")
    assert word_of("CANCELLED DUE TO TIME LIMIT") == "timeout"


def test_nodes_that_went_while_the_job_had_them() -> None:
    text = (
        "NodeName=n1 State=DOWN* Reason=Not responding [slurm@2026-11-16T12:20:00]\n"
        "NodeName=n2 State=IDLE+DRAIN Reason=Prolog error [root@2026-11-16T12:20:00]\n"
        "NodeName=n3 State=DOWN Reason=old [root@2025-01-01T00:00:00]\nNodeName=n4 State=IDLE\n"
    )
    at = make("7", "NODE_FAIL").start or 1794831600.0  # 2026-11-16T12:20:00 in UTC
    found = gone(text, at - 86400.0, at + 86400.0)
    assert (lost(found), prolog(found)) == (("n1",), ("n2",))


@pytest.mark.parametrize(
    ("reason", "never"),
    [
        ("DependencyNeverSatisfied", True), ("PartitionNodeLimit", True), ("PartitionTimeLimit", True),
        ("QOSMaxNodePerJobLimit", True), ("AssocMaxWallDurationPerJobLimit", True), ("BadConstraints", True),
        ("Resources", False), ("Priority", False), ("QOSMaxJobsPerUserLimit", False), ("AssocGrpNodeLimit", False),
        ("JobHeldUser", False),
    ],
)  # fmt: skip
def test_reasons_that_waiting_does_not_mend(reason: str, never: bool) -> None:
    assert never_clears(reason) == never
    assert bool(advice(reason)) == (never or reason == "JobHeldUser")
    assert make("7", "PENDING", reason).stuck == (never or reason == "JobHeldUser")
