"""The watcher and the ends of jobs, under a clock of the test's own: which it tells, and what follows from them."""
# ruff: noqa: F401, F811 - the fixture is imported, and then asked for by name

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from watched_job import T0, Night, SimJob, begun, night, until_told

from trackwalker.job.slurm.states import JobState
from trackwalker.launch.job_state import Standing
from trackwalker.watch.detect.confirm import Second
from trackwalker.watch.detect.rules import Alert
from trackwalker.watch.supervise.restarts import Outcome, Restarts
from trackwalker.watch.supervise.resume_policy import ResumePolicy


def test_a_failed_rank_and_the_end_of_its_job_are_one_thread(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    job.event(at, "first-failure", 1, exit=137, cause="killed by SIGKILL")
    night.look(at + 2)
    job.event(at + 3, "run-end", exit=137, reason="x")
    night.asker.now["77"] = Standing("failed", True, 137, "failed with exit code 137")
    night.look(at + 4, at + 5, at + 40)
    threads = [(m.kind, m.thread) for m in night.box.messages.values()]
    assert threads == [("failure", "77-failure-1"), ("ended", "77-failure-1")]
    assert night.box.titles() == ["rank 1 (n1) failed first: killed by SIGKILL", "it failed with exit code 137"]


def test_a_controller_that_does_not_answer_ends_no_job_and_blinds_nobody(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    night.asker.now["77"] = None  # unknown: the last standing holds
    night.look(at + 1, at + 3)
    assert not night.box.messages
    assert "77" in night.daemon.watched  # type: ignore[union-attr]
    after = until_told(night, "hang", at, 60.0)  # its own records still speak
    assert after is not None


def test_an_end_that_nobody_recorded_is_looked_at_twice(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    lost = Standing("lost", True, meaning="is over: its processes are gone")
    night.asker.now["77"] = lost
    night.look(at + 1, at + 5)
    assert not night.box.titles("ended")
    night.look(at + 12, at + 14, at + 40)
    assert night.box.titles("ended") == ["it is over: its processes are gone"]


def test_jobs_that_were_over_before_anybody_watched_are_not_told(night: Night) -> None:
    old = SimJob(night.workspace, "12")
    old.event(T0 - 500, "run-end", exit=0, reason="")
    night.asker.now["12"] = Standing("completed", True, 0, "finished")
    os.utime(old.log, (T0 - 500, T0 - 500))
    said: list[str] = []
    night.warn = said.append
    # Killed with everything: only its scheduler knows that it is over.
    for number in range(13, 16):
        killed = SimJob(night.workspace, str(number))
        os.utime(killed.log, (T0 - 500, T0 - 500))
        night.asker.now[killed.id] = Standing("node-fail", True, 1, "lost n1", end=T0 - 490)
    night.start(T0)
    night.look(T0, T0 + 30)
    assert not night.box.messages
    assert said == ["4 jobs were over before this watch began: not reported, see 'trackwalker jobs'"]
    night.stop()
    night.look(T0 + 60, T0 + 90)  # and they are not counted again
    assert (len(said), len(night.box.messages)) == (1, 0)


def test_a_job_that_ended_while_no_watcher_ran_is_told(night: Night) -> None:
    night.start(T0)
    night.look(T0)
    night.stop()
    late = SimJob(night.workspace, "20")
    os.utime(late.log, (T0 + 100, T0 + 100))
    night.asker.now["20"] = Standing("failed", True, 1, "failed with exit code 1", end=T0 + 110)
    night.look(T0 + 200, T0 + 202, T0 + 230)
    assert night.box.titles("ended") == ["it failed with exit code 1"]


def test_of_several_first_failures_of_an_attempt_the_earliest_is_told_and_the_next_attempt_has_its_own(
    night: Night,
) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    job.event(at + 0.2, "first-failure", 0, exit=1, cause="exited with 1")
    job.event(at, "first-failure", 1, exit=137, cause="killed by SIGKILL")
    night.look(at + 2, at + 40)
    assert night.box.titles("failure") == ["rank 1 (n1) failed first: killed by SIGKILL"]
    job.event(at + 50, "attempt-begin", attempt=1)
    job.event(at + 60, "first-failure", 0, exit=1, cause="exited with 1")
    night.look(at + 62, at + 100)
    assert night.box.titles("failure")[1:] == ["rank 0 (n0) failed first: exited with 1"]


def test_what_goes_on_is_told_before_what_is_over(night: Night) -> None:
    SimJob(night.workspace, "76").steps(T0, 1.0, 5)
    at = begun(night, SimJob(night.workspace))
    night.asker.now["76"] = Standing("failed", True, 1, "failed with exit code 1")
    night.look(at + 1)  # its verdict comes with the next look
    night.asker.now["77"] = Standing("pending", False, meaning="is held: JobHeldUser", stuck=True)
    night.look(at + 11)
    assert [(m.job, m.kind) for m in night.box.messages.values()] == [("77", "held"), ("76", "ended")]


def test_a_requeued_job_is_told_once_and_its_next_end_again(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    night.asker.now["77"] = Standing("pending", False, meaning="waits in the queue again (restart 1)", restarts=1)
    night.look(at + 1, at + 3, at + 300)  # a job that waits does not hang
    night.asker.now["77"] = Standing("completed", True, 0, "finished", restarts=1)
    night.look(at + 310, at + 312)
    assert [(m.kind, m.severity) for m in night.box.messages.values()] == [("requeued", "warning"), ("ended", "info")]


def test_the_policy_is_asked_once_about_an_end_also_across_a_restart(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def decide(self: Restarts, path: str) -> Outcome:
        asked.append(Path(path).name)
        return Outcome("job 77: another attempt without n1", resumed=True)

    night.policy = ResumePolicy()
    monkeypatch.setattr(Restarts, "_decide", decide)
    at = begun(night, SimJob(night.workspace))
    night.asker.now["77"] = Standing("node-fail", True, 1, "lost a node")
    night.look(at + 1, at + 2)
    night.stop()
    night.look(at + 30, at + 60)
    assert asked == ["77-JAX-x"]
    told = [(m.kind, m.thread) for m in night.box.messages.values()]
    assert sorted(told) == [("ended", "77-ended-1"), ("resume", "77-ended-1")]


def test_a_scheduler_that_does_not_answer_puts_the_decision_off(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Standing("unknown", False), Standing("unknown", False), Standing("completed", True, 0, "finished")]
    monkeypatch.setattr("trackwalker.watch.supervise.restarts.standing", lambda job: answers.pop(0))
    night.policy = ResumePolicy()
    at = begun(night, SimJob(night.workspace))
    night.asker.now["77"] = Standing("node-fail", True, 1, "lost a node")
    night.look(at + 1, at + 2)
    assert len(answers) == 2, "it is not asked at every look"
    night.look(at + 20, at + 40, at + 60)
    assert answers == []


def test_without_a_policy_nothing_is_asked_and_nothing_started(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Restarts, "_decide", lambda self, path: pytest.fail("nobody allowed that"))
    at = begun(night, SimJob(night.workspace))
    night.asker.now["77"] = Standing("node-fail", True, 1, "lost a node")
    night.look(at + 1, at + 2, at + 30)
    assert [m.kind for m in night.box.messages.values()] == ["ended"]


def test_a_job_written_off_as_old_comes_back_when_slurm_still_has_it(night: Night) -> None:
    job = SimJob(night.workspace)
    job.steps(T0 - 200_000, 1.0, 60)
    os.utime(job.log, (T0 - 199_000, T0 - 199_000))
    night.asker.queue = [JobState("77", "running", name="JAX-x")]
    night.look(T0, T0 + 2, T0 + 4, T0 + 20, T0 + 40)  # it has been silent for two days: that is a hang
    assert [m.kind for m in night.box.messages.values()] == ["hang"]


def test_a_watcher_of_named_jobs_ends_with_the_last_of_them(night: Night) -> None:
    at = begun(night, SimJob(night.workspace))
    daemon = night.daemon
    assert daemon is not None
    daemon.jobs.named = True
    night.asker.now["77"] = Standing("completed", True, 0, "finished")
    clock = iter(np.arange(at, at + 1000, 0.5))
    daemon.run(lambda seconds: False, lambda: float(next(clock)))
    assert night.box.titles() == ["it finished"]
