"""The watcher under a clock of the test's own: what it calls, what it leaves alone, and what it tells."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trackwalker.job.slurm.states import JobState
from trackwalker.launch.standing import Standing
from trackwalker.watch.confirm import Second
from trackwalker.watch.detect import Alert
from trackwalker.watch.restarts import Outcome, Restarts
from trackwalker.watch.resume_policy import ResumePolicy
from watched_job import T0, Night, SimJob

UNKNOWN_SIGNAL = Second(None, "nobody could be asked")
AGAINST = Second(False, "GPUs draw 80 % of their power limit")


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    made = Night(tmp_path / "outputs")
    yield made
    made.stop()


def begun(night: Night, job: SimJob, seconds: float = 1.0, steps: int = 60) -> float:
    """A job that has trained for a while, and a watcher that saw it."""
    night.start(T0)
    at = job.steps(T0, seconds, steps)
    night.look(at)
    return at


def until_told(night: Night, kind: str, begin: float, most: float, every: float = 1.0) -> float | None:
    """Seconds after `begin` at which an incident of a kind was opened."""
    for now in np.arange(begin, begin + most, every):
        night.look(float(now))
        assert night.daemon is not None
        found = [i for i in night.daemon.memory.incidents.values() if i.kind == kind]
        if found:
            return found[-1].opened - begin
    return None


@pytest.mark.parametrize("seconds", [0.3, 5.0, 30.0, 200.0])
def test_a_hang_is_called_within_a_minute_of_the_third_missed_step(night: Night, seconds: float) -> None:
    at = begun(night, SimJob(night.workspace), seconds)
    after = until_told(night, "hang", at, 2000.0, every=1.0 if seconds < 100 else 5.0)
    assert after is not None
    assert 3 * seconds < after < 3 * seconds + 60.0


def test_a_hang_names_the_rank_and_why_and_resolves_when_steps_come_again(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    night.look(*np.arange(at, at + 60.0, 1.0))
    (message,) = night.box.messages.values()
    assert (message.key, message.severity, message.thread) == ("77-hang-1:opened", "critical", "77-hang-1")
    assert message.facts["points at"] == "rank 1 (n1)"
    assert "stopped" in message.facts["second signal"]
    at = job.steps(at + 60.0, 1.0, 3)
    night.look(at, at + 2.0)
    assert [m.resolves for m in night.box.messages.values()] == [False, True]
    assert night.box.titles()[-1] == "steps are completed again"


def test_without_a_second_signal_a_hang_is_called_later_and_against_one_much_later(night: Night) -> None:
    at = begun(night, SimJob(night.workspace))
    night.second = AGAINST
    after = until_told(night, "hang", at, 120.0)
    assert after is not None
    assert 24.0 < after < 45.0
    other = Night(night.workspace.parent / "other", second=UNKNOWN_SIGNAL)
    at = begun(other, SimJob(other.workspace))
    after = until_told(other, "hang", at, 120.0)
    other.stop()
    assert after is not None
    assert 12.0 < after < 24.0


def test_a_compilation_of_three_minutes_is_not_called(night: Night) -> None:
    job = SimJob(night.workspace)
    night.start(T0)
    job.record(T0, "init", state="begin")
    job.record(T0 + 20, "init", state="end", seconds=20.0)
    job.record(T0 + 21, "compile", state="begin")
    night.look(*np.arange(T0, T0 + 201.0, 2.0))
    job.record(T0 + 201, "compile", state="end", seconds=180.0)
    at = job.steps(T0 + 201, 1.0, 40)
    # And once more, in the middle of the run.
    job.record(at, "compile", state="begin")
    night.look(*np.arange(at, at + 180.0, 2.0))
    assert not night.box.messages


def test_a_slow_checkpoint_is_not_called_and_one_without_end_is(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    job.record(at, "checkpoint", ranks=[0], state="begin", step=59)
    night.look(*np.arange(at, at + 700.0, 5.0))
    job.record(at + 700, "checkpoint", ranks=[0], state="end", step=59, seconds=700.0)
    at = job.steps(at + 700, 1.0, 20)
    night.look(at)
    assert not night.box.messages
    job.record(at, "checkpoint", ranks=[0], state="begin", step=79)
    after = until_told(night, "checkpoint", at, 8000.0, every=50.0)
    assert after is not None
    assert 7000.0 < after < 7200.0


def test_a_slow_down_is_called_with_both_speeds_and_ends(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job, 0.5, 100)
    for _ in range(60):
        at = job.steps(at, 0.9)
        night.look(at)
    assert night.box.titles("slow") == ["steps take 0.90 s instead of 0.50 s"]
    for _ in range(100):
        at = job.steps(at, 0.5)
        night.look(at)
    assert night.box.titles("slow")[1:] == ["steps are as fast as before"]


def test_late_batches_are_called_with_their_rank(night: Night) -> None:
    job = SimJob(night.workspace, ranks=3)
    at = begun(night, job, 0.5, 100)
    for _ in range(50):
        at += 1.2
        job.step += 1
        for rank in range(3):
            waits = 0.8 if rank == 2 else 0.001
            job.record(at, "train", [rank], step=job.step, seconds=1.2, loss=2.0, data_wait_s=waits)
        night.look(at)
    assert [t.partition("s: ")[2] for t in night.box.titles("data-slow")] == ["batches come late to rank 2 (n2)"]
    assert not night.box.titles("slow")


def test_a_batch_that_never_comes_is_called_with_its_rank(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    job.record(at + 5, "data_wait", [1], state="begin")
    night.look(*np.arange(at, at + 40.0, 1.0))
    assert night.box.titles() == ["rank 1 (n1) waits for a batch that does not come"]


def test_one_hiccup_is_no_slow_down(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job, 1.0, 60)
    for seconds in [7.0] + [1.0] * 30 + [6.0] + [1.0] * 30:
        at = job.steps(at, seconds)
        night.look(at)
    assert not night.box.messages


def test_a_loss_that_is_no_number_is_called_at_once(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    at = job.steps(at, 1.0, 1, loss=float("nan"))
    night.look(at + 2, at + 30)
    assert night.box.titles("loss") == ["loss is not a number from step 60 on"]


def test_a_loss_that_left_its_level_is_called_and_a_spike_is_not(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    at = job.steps(at, 1.0, 3, loss=9.0)
    at = job.steps(at, 1.0, 20)
    night.look(at)
    assert not night.box.messages
    at = job.steps(at, 1.0, 15, loss=9.0)
    night.look(at, at + 30)
    assert night.box.titles("loss") == ["the loss left its level at step 83 and did not come back"]


def test_missing_checkpoints_are_called_once(night: Night) -> None:
    job = SimJob(night.workspace)
    night.start(T0)
    at = T0
    for _ in range(3):
        at = job.steps(at, 1.0, 20)
        job.record(at, "checkpoint", [0], state="end", step=job.step, seconds=1.0, background=True)
    for _ in range(90):
        at = job.steps(at, 1.0)
        night.look(at)
    (title,) = night.box.titles("checkpoint")
    assert re.fullmatch(r"the last complete checkpoint is 6[2-4] steps old", title)


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


def test_alerts_of_many_hosts_are_one_incident_that_ends_when_they_stay_away(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job, 1.0)
    night.asker.alerts = [Alert("GpuXid", "critical", f"n{i}", f"n{i} GPU 0: XID 79", at) for i in range(3)]
    night.asker.alerts.append(Alert("TrainingStalled", "critical", "", "no step", at))
    for _ in range(100):
        at = job.steps(at, 1.0)
        night.look(at)
        night.asker.alerts = night.asker.alerts if job.step < 70 else []
    assert night.box.titles() == ["n0 GPU 0: XID 79 and 2 more", "it is over"]


def test_a_log_alone_is_enough_for_upstream_jobs(night: Night) -> None:
    night.second = UNKNOWN_SIGNAL
    job = SimJob(night.workspace, upstream=True)
    job.log.write_text("Config param checkpoint_period: 50\nConfig param enable_checkpointing: True\n")
    os.utime(job.log, (T0, T0))
    night.start(T0)
    at = T0
    for _ in range(101):
        at = job.steps(at, 10.0)
        night.look(at)
    # Step 100 saves: twenty minutes of silence would be called, ten are not.
    night.look(*np.arange(at, at + 600.0, 10.0))
    assert not night.box.messages
    at = job.steps(at + 600, 10.0, 20)
    night.look(at)
    after = until_told(night, "hang", at, 400.0)
    assert after is not None
    assert 60.0 < after < 200.0


def test_a_verdict_comes_with_the_first_message(tmp_path: Path) -> None:
    roots = [{"cause": "collective-hang", "hosts": ["n1"], "confidence": 0.9}]
    verdict = {"outcome": "incident", "status": "hanging", "summary": "a hang", "roots": roots, "actions": ["look"]}
    night = Night(tmp_path / "outputs", verdict=verdict)
    at = begun(night, SimJob(night.workspace))
    night.look(*np.arange(at, at + 60.0, 1.0))
    night.stop()
    first = next(iter(night.box.messages.values()))
    assert first.facts["verdict"] == "collective-hang on n1"
    assert "Verdict: a hang" in first.text


def test_a_loss_that_ends_its_job_is_told_with_the_end(night: Night) -> None:
    job = SimJob(night.workspace)
    at = begun(night, job)
    job.steps(at, 1.0, 1, loss=float("nan"))
    night.asker.now["77"] = Standing("failed", True, 1, "failed with exit code 1")
    night.look(at + 2, at + 3, at + 30)
    assert night.box.titles("loss")[0] == "loss is not a number from step 60 on"
    assert night.box.titles("ended") == ["it failed with exit code 1"]


def test_a_damaged_job_is_named_and_blinds_nobody_to_the_others(tmp_path: Path) -> None:
    night = Night(tmp_path / "outputs")
    broken = SimJob(night.workspace, "66")
    (broken.dir / "run.json").write_text("{")
    said: list[str] = []
    night.warn = said.append
    at = begun(night, SimJob(night.workspace))
    assert until_told(night, "hang", at, 60.0) is not None
    night.stop()
    assert len(said) == 1
    assert said[0].startswith("job 66 cannot be watched: ")


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
    monkeypatch.setattr("trackwalker.watch.restarts.standing", lambda job: answers.pop(0))
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


def test_a_job_that_is_renamed_is_followed_to_its_new_name(night: Night) -> None:
    night.second = UNKNOWN_SIGNAL
    job = SimJob(night.workspace, upstream=True)
    at = begun(night, job, 10.0)
    job.log = job.log.rename(job.log.with_name("77-JAX-x-TGS_2034.567.log"))
    for _ in range(60):
        at = job.steps(at, 10.0)
        night.look(at)
    assert not night.box.messages
    assert night.daemon is not None
    assert night.daemon.watched["77"].signs.course.last_step == 119


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
