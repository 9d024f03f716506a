"""Further attempts on a real Slurm: as the failure asks for, on the nodes that are left, from the last checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_here import call_here
from slurm_cluster import SlurmCluster
from tiny_settings import PACED

from trackwalker.job.journal import read
from trackwalker.job.run import RunRecord, load_run
from trackwalker.launch.ledger import to_exclude
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.slurm import Queued, plan_batch, submit
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.submission import How, plan_submission

pytestmark = [pytest.mark.disturbed_by_load(reason="Slurm repeats a job after real seconds"), pytest.mark.timeout(240)]
# Fails once in its way on rank 1, and ends well wherever that cannot happen again.
TRAINER = """
import os, pathlib, sys, time
rank, how, mark = os.environ["NODE_RANK"], sys.argv[1], pathlib.Path(sys.argv[2])
passed = mark.with_suffix("." + os.environ.get("SLURM_RESTART_COUNT", "0"))
print("Config param steps:", 8, flush=True)
for step in range(8):
    print(f"completed step: {step}, seconds: 0.100, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0", flush=True)
    time.sleep(0.1)
    if step != 3:
        continue
    if rank == "1" and how == "node" and os.environ["TRACKWALKER_HOST"] == "n2":
        print("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", flush=True)
        sys.exit(1)
    if rank == "1" and how == "oom":
        print("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.", flush=True)
        sys.exit(1)
    if rank == "1" and how == "crash" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 11)
    if rank == "1":
        passed.touch()
    while not passed.exists():  # as in a collective: nobody goes on without the other
        time.sleep(0.05)
"""


@pytest.fixture
def cluster(slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The worker's own with three of its nodes: without a spare, a node that is left out is seen to be left out."""
    slurm.client("scontrol", "update", "nodename=n4", "state=drain", "reason=three nodes are enough")
    try:
        yield slurm
    finally:
        slurm.client("scontrol", "update", "nodename=n4", "state=resume")


@pytest.fixture
def start(cluster: SlurmCluster, tmp_path: Path) -> Callable[..., Queued]:
    def start(how: str, budget: int = 3, requeue: bool = True) -> Queued:
        planned = plan_submission(Asked("tiny", nodes=2, workspace=tmp_path), How("slurm", ["submit", "tiny"]))
        words = [sys.executable, "-c", TRAINER, how, str(tmp_path / "mark")]
        order = dataclasses.replace(planned.order, argv=words, output=None)
        record = planned.record.model_copy(update={"auto_resume": budget})
        slurm = Slurm(cluster.env)
        options = SubmitOptions(nodes=2, requeue=requeue)
        quick = dataclasses.replace(planned, order=order, record=record)
        return submit(plan_batch(quick, options, slurm, sys.executable), slurm)

    return start


def cli(cluster: SlurmCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return call_here(cluster.env, *words)


def record_of(job_dir: Path) -> RunRecord:
    record = load_run(job_dir / "run.json")
    assert record is not None
    return record


@pytest.mark.long(reason="the same requeue as of the faulty node below; a landing resumes a crash by command")
def test_a_crash_gets_one_more_attempt_in_the_same_job(cluster: SlurmCluster, start: Callable[..., Queued]) -> None:
    job = start("crash")
    done = cli(cluster, "wait", job.id, "--auto-resume", "--workspace", str(job.job_dir.parent))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"job {job.id}: attempt 1 of 4 ended by crash (segfault): another attempt" in done.stderr
    (attempt,) = record_of(job.job_dir).attempts
    assert (attempt["attempt"], attempt["class"], attempt["cause"]) == (0, "crash", "segfault")
    assert {p.name for p in (job.job_dir / "agent").glob("attempt-*")} == {"attempt-0", "attempt-1"}
    log = job.log.read_text()
    assert "exit=139" in log.rpartition("JOB_ID=")[0], "the first attempt's evidence is kept"
    assert "SUCCESS (exit 0)" in log.rpartition("JOB_ID=")[2]


def test_a_faulty_node_is_left_out_and_remembered(cluster: SlurmCluster, start: Callable[..., Queued]) -> None:
    job = start("node")
    workspace = job.job_dir.parent
    done = cli(cluster, "wait", job.id, "--auto-resume", "--workspace", str(workspace))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended by node (gpu-hardware-fault): another attempt without n2" in done.stderr
    begins = [e for e in read(job.job_dir / "events.jsonl").items if e["kind"] == "attempt-begin"]
    assert [e["data"]["attempt"] for e in begins] == [0, 1]
    assert [place.host for place in record_of(job.job_dir).ranks] == ["n1", "n3"]
    assert [suspect.host for suspect in to_exclude(workspace)] == ["n2"]
    told = cli(cluster, "submit", "tiny", "-N", "2", "--hold", "--workspace", str(workspace), "--", "steps=5")
    assert "warning: n2 may fail again (its hardware: gpu-hardware-fault" in told.stderr
    cluster.cancel_all()


def test_memory_that_ran_out_is_no_reason_to_try_again(cluster: SlurmCluster, start: Callable[..., Queued]) -> None:
    job = start("oom")
    workspace = str(job.job_dir.parent)
    done = cli(cluster, "wait", job.id, "--auto-resume", "--workspace", workspace)
    assert done.returncode == 1, done.stderr
    assert "no further attempt; the same memory would run out again" in done.stderr
    asked = cli(cluster, "resume", job.id, "--yes", "--json", "--workspace", workspace)
    assert asked.returncode == 1
    answer = json.loads(asked.stdout)
    assert (answer["resume"], answer["class"], "started" in answer) == (False, "oom", False)
    assert record_of(job.job_dir).attempts == []


def test_resume_says_first_and_starts_only_with_yes(cluster: SlurmCluster, start: Callable[..., Queued]) -> None:
    job = start("crash")
    workspace = str(job.job_dir.parent)
    running = cli(cluster, "resume", job.id, "--workspace", workspace)
    assert running.returncode == 2
    assert "has not ended" in running.stderr
    assert cli(cluster, "wait", job.id, "--workspace", workspace).returncode == 139
    said = cli(cluster, "resume", job.id, "--workspace", workspace)
    assert said.returncode == 0
    assert Slurm(cluster.env).state(job.id).ended, "nothing was started"
    begun = cli(cluster, "resume", job.id, "--yes", "--exclude", "n1", "--json", "--workspace", workspace)
    answer = json.loads(begun.stdout)
    assert (answer["started"], answer["requeued"], answer["exclude"]) == (job.id, True, ["n1"])
    assert cli(cluster, "wait", job.id, "--workspace", workspace).returncode == 0
    assert [place.host for place in record_of(job.job_dir).ranks] == ["n2", "n3"]


def test_a_job_that_slurm_does_not_repeat_goes_on_as_a_new_one(cluster: SlurmCluster, tmp_path: Path) -> None:
    # The real small trainer: the next job has to find the checkpoint of the one before.
    settings = [*PACED, "steps=4000", "checkpoint_period=10"]
    done = cli(cluster, "submit", "tiny", "-N", "1", "--json", "--workspace", str(tmp_path), "--", *settings)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    job_dir, log = Path(answer["dir"]), Path(answer["log"])
    reached = lambda: log.exists() and "completed step: 12," in log.read_text()  # noqa: E731
    cluster.wait_for(reached, "twelve steps", 90)
    state = json.loads((job_dir / "agent" / "state.json").read_text())
    os.kill(state["ranks"][0]["main"], signal.SIGKILL)
    assert cli(cluster, "wait", answer["id"], "--workspace", str(tmp_path)).returncode == 137
    begun = cli(cluster, "resume", answer["id"], "--yes", "--json", "--workspace", str(tmp_path))
    assert begun.returncode == 0, begun.stdout + begun.stderr
    after = json.loads(begun.stdout)
    assert after["requeued"] is False
    assert after["started"] != answer["id"]
    record = record_of(Path(after["dir"]))
    assert record.resumed_from == answer["id"]
    twice = cli(cluster, "resume", answer["id"], "--yes", "--workspace", str(tmp_path))
    assert twice.returncode == 2
    assert f"goes on as job {after['started']}" in twice.stderr
    assert [attempt["class"] for attempt in record.attempts] == ["crash"]
    again = Path(after["log"])
    restored = lambda: again.exists() and "restoring from this run's directory step" in again.read_text()  # noqa: E731
    cluster.wait_for(restored, "a restored checkpoint", 90)
    cluster.cancel_all()
