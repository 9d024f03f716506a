"""Runs on a real Slurm of four nodes: however one ends, status, cause, exit code and files tell the truth."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hard_values
import pytest
from command_here import call_here
from hypothesis import given
from slurm_cluster import SlurmCluster, need_slurm
from slurm_run import Run
from tiny_settings import PACED

from trackwalker.diagnose.triage import triage
from trackwalker.job.journal import read
from trackwalker.job.resolve import resolve
from trackwalker.job.run import load_run
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.slurm import Queued, plan_batch, submit
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.submission import How, plan_submission

pytestmark = [
    pytest.mark.disturbed_by_load(reason="Slurm kills, requeues and gives nodes up after real seconds"),
    pytest.mark.timeout(240),
]
# A trainer that is there in milliseconds: what Slurm and the agents do is what these tests are about.
STEPS = """
import os, sys, time
rank, steps = os.environ["NODE_RANK"], int(sys.argv[1])
print("Config param steps:", steps, flush=True)
for step in range(steps):
    print(f"completed step: {step}, seconds: 0.100, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def cluster(slurm: SlurmCluster) -> SlurmCluster:
    """The worker's own: no test of this file takes a node away."""
    return slurm


@pytest.fixture
def start(cluster: SlurmCluster, tmp_path: Path) -> Callable[..., Run]:
    def start(steps: int = 40, nodes: int = 2, timeouts: str = "", **options: object) -> Run:
        slurm = Slurm(cluster.env)
        how = How("slurm", ["submit", "tiny"])
        planned = plan_submission(Asked("tiny", nodes=nodes, stage_timeouts=timeouts, workspace=tmp_path), how)
        words = [sys.executable, "-c", STEPS, str(steps)]
        quick = dataclasses.replace(planned, order=dataclasses.replace(planned.order, argv=words, output=None))
        batch = plan_batch(quick, SubmitOptions(nodes=nodes, **options), slurm, sys.executable)  # type: ignore[arg-type]
        return Run(cluster, submit(batch, slurm))

    return start


def cli(cluster: SlurmCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return call_here(cluster.env, *words)


def test_a_run_completes_on_four_nodes(start: Callable[..., Run]) -> None:
    run = start(steps=10, nodes=4)
    assert run.ends() == "completed"
    assert run.summary() == "Status: SUCCESS (exit 0)"
    record = load_run(run.dir / "run.json")
    assert record is not None
    assert record.id == run.id
    assert [(place.rank, place.host) for place in record.ranks] == [(0, "n1"), (1, "n2"), (2, "n3"), (3, "n4")]
    assert (run.dir / "log").resolve() == run.log
    for rank in range(4):
        assert run.text.count(f"\n{rank}: completed step: ") == 10
        assert (run.dir / "ranks" / f"{rank}.log").read_text().count("completed step") == 10
    steps = [(r["rank"], r["step"]) for r in read(run.dir / "progress.jsonl").items]
    assert sorted(steps) == [(rank, step) for rank in range(4) for step in range(10)]
    assert sorted(e["rank"] for e in run.events("rank-exit")) == [0, 1, 2, 3]
    for line in ("== Preflight BEGIN (timeout=900s) ==", "== ECC check BEGIN", "== Training BEGIN (no timeout) =="):
        assert line in run.text
    assert triage(resolve(run.id, run.dir.parent)).status == "completed"


def test_r23_a_killed_rank_is_named_and_its_code_is_the_jobs(start: Callable[..., Run]) -> None:
    run = start(steps=600, nodes=4)
    run.says("2: completed step: 3")
    os.kill(run.rank_pid(2), signal.SIGKILL)
    assert run.ends() == "failed"
    assert run.slurm.state(run.id).exit_code == 137
    assert "FIRST_FAILURE rank=2 host=n3 exit=137 cause=killed by SIGKILL" in run.text
    assert run.summary() == "Status: FAILED (exit 137) — Training FAILED (exit=137)"
    (first,) = run.events("first-failure")
    assert (first["rank"], first["host"]) == (2, "n3")
    others = {e["rank"]: e["data"]["exit"] for e in run.events("rank-exit") if e["rank"] != 2}  # type: ignore[index]
    assert others == {0: 143, 1: 143, 3: 143}  # secondary: they were told to end
    found = triage(resolve(run.id, run.dir.parent))
    assert found.status == "failed"


def test_cancel_ends_everything_and_says_so(cluster: SlurmCluster, start: Callable[..., Run]) -> None:
    run = start(steps=600)
    run.says("1: completed step: 2")
    done = cli(cluster, "cancel", run.id, "--workspace", str(run.dir.parent))
    assert done.returncode == 0, done.stderr
    assert run.ends() == "cancelled"
    assert run.summary() == "Status: FAILED (exit 143) — CANCELLED (scancel / SIGTERM)"
    assert run.events("first-failure") == []
    assert triage(resolve(run.id, run.dir.parent)).status == "cancelled"


def test_r17_cancel_between_stages_is_never_success(start: Callable[..., Run], cluster: SlurmCluster) -> None:
    run = start(steps=600)
    run.says("== Preflight BEGIN")
    cluster.client("scancel", run.id)
    assert run.ends() in ("cancelled", "failed")
    assert "SUCCESS" not in run.text
    # Checks of two empty nodes are done at once: the word may meet the step of the training while srun starts it, and
    # srun waits longer for that than this cluster waits before it kills the batch script.
    if "== Training BEGIN" not in run.text or "JOB SUMMARY" in run.text:
        assert "(exit 143) — CANCELLED" in run.summary()


def test_a_word_to_the_batch_script_alone_ends_the_run(cluster: SlurmCluster, start: Callable[..., Run]) -> None:
    run = start(steps=600)
    run.says("1: completed step: 2")
    cluster.client("scancel", "--batch", "--signal=TERM", run.id)
    assert run.ends() in ("failed", "cancelled")
    assert run.summary() == "Status: FAILED (exit 143) — CANCELLED (scancel / SIGTERM)"


@pytest.mark.long(reason="Slurm counts time limits in minutes; test_watch_slurm.py has one that is brought forward")
def test_r19_slurms_own_word_before_a_time_limit_reaches_the_run(start: Callable[..., Run]) -> None:
    """Asked for by default: nobody said --signal."""
    run = start(steps=900, time="0:06")
    assert run.ends(120) == "timeout"
    assert f"\nTIME_LIMIT_NEAR: Slurm ends job {run.id} at its time limit\n" in run.text
    assert run.summary() == "Status: FAILED (exit 124) — CANCELLED DUE TO TIME LIMIT"


def test_requeue_keeps_both_attempts(start: Callable[..., Run], cluster: SlurmCluster) -> None:
    run = start(steps=25, requeue=True)
    run.says("completed step: 2")
    cluster.client("scontrol", "requeue", run.id)
    waiting = cluster.wait_for(lambda: (s := run.slurm.state(run.id)).state == "pending" and s, "it in the queue again")
    assert not waiting.ended
    assert waiting.meaning.startswith("waits in the queue again (restart 1)")
    cluster.wait_for(lambda: run.text.count("JOB_ID=") == 2, "a second attempt", 90)
    assert run.ends(90) == "completed"
    assert [e["data"]["attempt"] for e in run.events("attempt-begin")] == [0, 1]  # type: ignore[index]
    assert {p.name for p in (run.dir / "agent").glob("attempt-*")} == {"attempt-0", "attempt-1"}
    assert "CANCELLED" in run.text.partition("JOB_ID=")[2].partition("JOB_ID=")[0], (
        "the first attempt's evidence is kept"
    )
    assert "SUCCESS (exit 0)" in run.text.rpartition("JOB_ID=")[2]


def test_a_stage_that_takes_too_long_names_the_missing_node(start: Callable[..., Run], cluster: SlurmCluster) -> None:
    run = start(steps=10, timeouts="preflight:4,health:4")
    agent = cluster.wait_for(lambda: run.agents("n2")[1:], "the agent of n2")[0]
    os.kill(agent, signal.SIGSTOP)
    try:
        run.says("no word from n2", 40)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert run.ends() == "failed"
    assert run.slurm.state(run.id).exit_code == 124
    assert "TIMEOUT (" in run.summary()
    assert 'Hint: STAGE_TIMEOUTS="' in run.text


def test_training_has_a_limit_of_its_own(start: Callable[..., Run]) -> None:
    run = start(steps=900, timeouts="train:2")
    assert run.ends() == "failed"
    assert run.slurm.state(run.id).exit_code == 124
    assert run.summary().startswith("Status: FAILED (exit 124) — Training TIMEOUT (")


def test_a_prolog_that_fails_is_told_at_once(tmp_path: Path) -> None:
    need_slurm()
    with SlurmCluster(2, prolog="exit 1") as cluster:
        done = cli(cluster, "submit", "tiny", "-N", "2", "--workspace", str(tmp_path), "--", "steps=5")
        assert done.returncode == 1, done.stdout
        assert "died before it wrote a line: " in done.stderr
        assert "a prolog that fails looks like this" in done.stderr
        assert (next(tmp_path.glob("[0-9]*-*/")) / "run.json").exists(), "nothing is removed"


@hard_values.few_runs(2)
@given(values=hard_values.VALUES)
def test_r04_slurm_values_reach_the_trainer_byte_for_byte(
    slurm_session: SlurmCluster, tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    folder, slurm = tmp_path_factory.mktemp("values"), Slurm(slurm_session.env)
    words = [f"_env_{name}={value}" for name, value in hard_values.environment(values).items()]
    planned = plan_submission(Asked("tiny", words, nodes=2, workspace=folder), How("slurm", ["submit", "tiny"]))
    trainer, told = hard_values.stand_in(folder / "seen"), hard_values.settings_words(values)
    order = dataclasses.replace(planned.order, argv=trainer, settings=told, output=None)
    batch = plan_batch(dataclasses.replace(planned, order=order), SubmitOptions(nodes=2), slurm, sys.executable)
    run = Run(slurm_session, submit(batch, slurm))
    assert run.ends() == "completed", run.text[-3000:]
    for rank in (0, 1):
        hard_values.check(folder / "seen", rank, values)


@pytest.mark.parametrize(
    ("sbatch", "code", "kept"),
    [
        ("echo 'sbatch: error: Invalid account' >&2; exit 1", 2, False),
        ("echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1", 69, False),
        ("echo 'Socket timed out on send/recv operation' >&2; exit 1", 69, True),
        ("echo queued, I think", 69, True),
    ],
)
def test_r11_what_stays_of_a_submit_that_failed(tmp_path: Path, sbatch: str, code: int, kept: bool) -> None:
    programs = {"sbatch": sbatch, "scontrol": "echo 'No reservations in the system'"}  # of a Slurm in trouble
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = call_here(env, "submit", "tiny", "--workspace", "ws", "--code", "code", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert ("may be queued all the same" in done.stderr) == kept
    assert bool(list(tmp_path.glob("ws/.submissions/*/order.json"))) == kept
    assert bool(list(tmp_path.glob("ws/.artifacts/*/train.py"))) == kept
    assert list(tmp_path.glob("ws/*-JAX-*")) == [], "a job directory is the first node's to make, if there is a job"


def test_a_real_run_is_recorded_on_all_nodes(cluster: SlurmCluster, tmp_path: Path, prometheus: Path) -> None:
    # Prometheus looks for new targets every five seconds: a run of five would be over.
    words = ["submit", "tiny", "-N", "2", "--observe", "--json", "--workspace", str(tmp_path)]
    done = cli(cluster, *words, "--", *PACED, "steps=80", "enable_checkpointing=false", "_env_GREETING=a b'c\"$d%e\nf")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    run = Run(cluster, Queued(answer["id"], Path(answer["dir"]), Path(answer["log"])))
    assert run.ends(150) == "completed", run.text[-3000:]
    said = cli(cluster, "diagnose", str(run.dir), "--json")
    verdict = json.loads(said.stdout)
    assert verdict["outcome"] in ("healthy", "expected", "insufficient"), verdict
    told = cli(cluster, "tsdb", "query", str(run.dir), "count by (host) (max_over_time(hw_rank_up[10m]))", "--json")
    assert all(f'"n{i}"' in told.stdout for i in (1, 2)), told.stdout + told.stderr
