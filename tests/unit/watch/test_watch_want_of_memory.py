"""A job that failed for want of memory is told as that: by the kernel's word to the agent, or by Slurm's in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from watched_job import T0, Night, SimJob

from trackwalker.launch.job_state import Standing
from trackwalker.watch.detect.rules import told_apart

FAILED = Standing("failed", True, 1, "failed with exit code 1", "NonZeroExitCode", "n1")
STEP = "0: completed step: 7, seconds: 0.1, loss: 2.0\n"
DETECTED = (
    "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=2.0. "
    "Some of your processes may have been killed by the cgroup out-of-memory handler.\n"
)


def event(kind: str, rank: int) -> dict[str, Any]:
    return {"t": T0, "kind": kind, "rank": rank, "data": {}}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (STEP + DETECTED, "oom"),
        (STEP + "srun: error: n1: task 0: Out Of Memory\n", "oom"),
        (DETECTED + STEP, "failed"),  # an earlier attempt, or a process that was not needed
        (STEP + "0: user said: Out Of Memory\n", "failed"),
        ("", "failed"),
    ],
)
def test_slurms_last_words_in_the_log_tell_it(text: str, state: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    assert told_apart(FAILED, [], log).state == state
    assert told_apart(FAILED, [], tmp_path / "none").state == "failed"


def test_only_the_rank_that_failed_first_counts_and_only_a_failure_is_renamed() -> None:
    killed = [event("kernel-kill", 2), event("first-failure", 2)]
    found = told_apart(FAILED, killed, None)
    assert (found.state, found.exit, found.meaning, found.nodes) == ("oom", 137, "ran out of memory", "n1")
    assert told_apart(FAILED, [event("kernel-kill", 1), event("first-failure", 2)], None) == FAILED
    cancelled = Standing("cancelled", True, 143, "was cancelled")
    assert told_apart(cancelled, killed, None) == cancelled


def test_the_watcher_names_the_rank_that_the_kernel_killed(tmp_path: Path) -> None:
    night = Night(tmp_path / "outputs")
    job = SimJob(night.workspace)
    night.start(T0)
    at = job.steps(T0, 1.0, 20)
    night.look(at)
    job.event(at + 1, "kernel-kill", rank=1, text="Memory cgroup out of memory: Killed process 7 (python3)")
    job.event(at + 1, "first-failure", rank=1, exit=137, cause="was killed (SIGKILL)")
    night.asker.now["77"] = FAILED
    night.look(at + 2, at + 40, at + 41)  # the end is told after what began its thread
    night.stop()
    assert night.box.titles("failure") == ["rank 1 (n1) failed first: the kernel killed it for want of memory"]
    assert night.box.titles("ended") == ["it ran out of memory"]
