"""In an allocation, in arrays and heterogeneous jobs of a real Slurm: the nodes are used, or the answer is clear."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_here import call_here
from slurm_cluster import SlurmCluster
from standin_trainer import put_stand_in

pytestmark = [
    pytest.mark.disturbed_by_load(reason="jobs start and end on Slurm's own clock"),
    pytest.mark.timeout(180),
]
PROGRAM = (
    "import os; print('rank', os.environ['NODE_RANK'], 'of', os.environ['NNODES'], 'on', "
    "os.environ['SLURMD_NODENAME'], 'in', os.environ['SLURM_JOB_ID'], flush=True)"
)


def ours(*words: str) -> str:
    return shlex.join([sys.executable, "-m", "trackwalker", *words])


def test_run_uses_the_nodes_of_an_allocation_and_submit_says_that_it_does_not(
    slurm_session: SlurmCluster, tmp_path: Path
) -> None:
    slurm_session.wait_idle(60)
    fake = put_stand_in(tmp_path / "fake", PROGRAM)
    where = ("--workspace", str(tmp_path / "ws"))
    run = ours("run", "tiny", *where, "--", f"_env_PYTHONPATH={fake}")
    queue = ours("submit", "tiny", *where, "--hold", "--json", "--", f"_env_PYTHONPATH={fake}")
    script = f"{run} && {run}; echo ended=$? in $SLURM_JOB_ID; {queue}"
    done = subprocess.run(
        ["salloc", "-N2", "bash", "-c", script], env=slurm_session.env, capture_output=True, text=True, timeout=150,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    said = done.stdout + done.stderr
    try:
        allocation = done.stdout.partition("ended=0 in ")[2].split()[0]
        assert f"on the nodes of your Slurm allocation {allocation} (2 nodes: n[" in done.stderr, said
        logs = sorted((tmp_path / "ws").glob("local_*.log"))
        assert len(logs) == 2, said  # each run has an id of its own
        for log in logs:
            text = log.read_text()
            names = {
                line.rpartition(" on ")[2] for line in text.splitlines() if "rank " in line and " of 2 on " in line
            }
            assert {name.partition(" in ")[2] for name in names} == {allocation}, text
            assert len(names) == 2, text  # two different nodes
            assert "Status: SUCCESS (exit 0)" in text
            assert json.loads((log.with_suffix("") / "run.json").read_text())["allocation"] == allocation
            status = call_here(slurm_session.env, "status", log.stem.split("-")[0], "--json", *where)
            assert json.loads(status.stdout)["state"] == "completed"
        assert f"note: this is a new job, outside of your allocation {allocation}" in done.stderr
        queued = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"schema"')))
        assert queued["id"] != allocation
    finally:
        slurm_session.cancel_all()


@pytest.mark.parametrize("early", ["== Preflight BEGIN", ""], ids=["in preflight", "in training"])
def test_ctrl_c_ends_a_run_in_an_allocation_with_its_summary(
    early: str, slurm_session: SlurmCluster, tmp_path: Path
) -> None:
    """The word reaches the first node alone; the others hear it from there."""
    slurm_session.wait_idle(60)
    fake = put_stand_in(tmp_path / "fake", "import time; print('a rank waits', flush=True); time.sleep(100)")
    run = ours("run", "tiny", "--workspace", str(tmp_path / "ws"), "--", f"_env_PYTHONPATH={fake}")
    script = f"{run} & echo pid=$! > {tmp_path}/pid; wait $!; echo code=$?"
    salloc = subprocess.Popen(
        ["salloc", "-N2", "bash", "-c", script], env=slurm_session.env, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        logs = lambda: "".join(log.read_text() for log in (tmp_path / "ws").glob("local_*.log"))  # noqa: E731
        slurm_session.wait_for(lambda: early in logs() if early else logs().count("a rank waits") == 2, "it", 60)
        os.kill(int((tmp_path / "pid").read_text().partition("=")[2]), 15)
        said, _ = salloc.communicate(timeout=60)
        assert "code=143" in said, said
        assert "Status: FAILED (exit 143) — CANCELLED (scancel / SIGTERM)" in logs()
        slurm_session.wait_for(lambda: not slurm_session.leftovers(), "nothing left running", 20)
    finally:
        salloc.kill()
        slurm_session.cancel_all()


def test_tasks_of_an_array_and_parts_of_a_heterogeneous_job_are_told_apart(
    slurm_session: SlurmCluster, tmp_path: Path
) -> None:
    cluster, where = slurm_session, ("-w", str(tmp_path))
    cluster.wait_idle(60)
    script = tmp_path / "own.sh"
    script.write_text(
        '#!/bin/bash\necho "completed step: 1, seconds: 0.1, loss: 2.0"\nexit ${SLURM_ARRAY_TASK_ID:-0}\n'
    )
    log = f"--output={tmp_path}/%j-own.log"
    first = cluster.client("sbatch", "--parsable", "--array=0,3", log, str(script)).strip()
    parts = cluster.client("sbatch", "--parsable", log, "-N1", ":", "-N1", str(script)).strip()
    cluster.wait_for(lambda: not cluster.client("squeue", "-h").strip(), "the ends", 60)
    logs = sorted(int(path.name.partition("-")[0]) for path in tmp_path.glob("*-own.log"))
    assert {int(first), int(parts)} < set(logs)
    assert len(logs) == 3
    told = {job: json.loads(call_here(cluster.env, "status", str(job), "--json", *where).stdout) for job in logs}
    ends = {job: (seen["state"], seen["exit"]) for job, seen in told.items()}
    assert sorted(ends.values()) == [("completed", 0), ("completed", 0), ("failed", 3)], told
    assert ends[int(parts)] == ("completed", 0)
    rows = json.loads(call_here(cluster.env, "jobs", "--json", *where).stdout)["jobs"]
    assert {int(row["id"]): row["state"] for row in rows} == {job: state for job, (state, _) in ends.items()}


def test_submit_refuses_arrays_and_parts_in_one_line_and_run_a_heterogeneous_allocation(
    slurm_session: SlurmCluster, tmp_path: Path
) -> None:
    where = ("--workspace", str(tmp_path / "ws"))
    for words, why in (
        (["--array=1-4"], "one submission is one run; submit several"),
        (["-N1", ":", "-N2"], "the nodes of a run are equal"),
    ):
        refused = call_here(slurm_session.env, "submit", "tiny", *where, *words)
        assert refused.returncode == 2
        (line,) = refused.stderr.strip().splitlines()
        assert why in line
    inside = {**slurm_session.env, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_HET_SIZE": "2"}
    refused = call_here(inside, "run", "tiny", *where)
    assert (refused.returncode, "heterogeneous allocation of 2 parts" in refused.stderr) == (2, True)
    assert not list(tmp_path.rglob("*.log"))
