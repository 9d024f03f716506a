"""The watcher under a clock of the test's own: what it calls, what it leaves alone, and what it tells."""
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

UNKNOWN_SIGNAL = Second(None, "nobody could be asked")
AGAINST = Second(False, "GPUs draw 80 % of their power limit")


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
