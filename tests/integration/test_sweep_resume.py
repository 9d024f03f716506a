"""A sweep on a real Slurm is killed again and again, and ends in the same table with no job run twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_cluster import SlurmCluster
from trackwalker.sweep.state import State, load_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# The second submission dies before it is made. The third one's caller dies, and the job is queued a moment later by an
# sbatch that nobody waits for any more: as after a kill -9 in the middle of a submission to a busy controller.
SBATCH = """\
#!/bin/bash
case "$*" in *--parsable*) ;; *) exec {real} "$@" ;; esac
echo >> {count}
case $(wc -l < {count}) in
2) kill -9 $PPID; exit 1 ;;
3) kill -9 $PPID; sleep 1.5 ;;
esac
exec {real} "$@"
"""
WORDS = ("--steps", "16", "--minutes", "1", "--yes")
SETTINGS = ("base_emb_dim=32", "base_mlp_dim=32", "max_target_length=32", "enable_checkpointing=false")


def begin(env: dict[str, str], out: Path, *words: str) -> subprocess.Popen[bytes]:
    with out.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "trackwalker", *words], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def until(ready: Callable[[], Any], what: str, out: Path, seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < deadline, f"no {what}: {out.read_text()[-3000:]}"
        time.sleep(0.1)
    return found


def state_of(workspace: Path) -> State:
    folders = sorted((workspace / "sweeps").glob("*/state.jsonl"))
    return load_state(folders[0].parent) if folders else State()


def test_killed_while_submitting_and_while_a_job_runs_it_ends_in_the_same_table(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    workspace, out = tmp_path / "outputs", tmp_path / "out"
    wrapper, count = tmp_path / "bin" / "sbatch", tmp_path / "count"
    wrapper.parent.mkdir()
    real = shutil.which("sbatch", path=slurm.env["PATH"])
    wrapper.write_text(SBATCH.format(real=real, count=count))
    wrapper.chmod(0o755)
    env = {**slurm.env, "PATH": f"{wrapper.parent}:{slurm.env['PATH']}", "JOB_WORKSPACE": str(workspace)}
    node = slurm.names[0]
    values = "per_device_batch_size=1,2,3"
    sweep = begin(env, out, "sweep", "batch", "tiny", "--nodelist", node, "--param", values, *WORDS, "--", *SETTINGS)
    assert sweep.wait(90) == -signal.SIGKILL, out.read_text()
    assert [bool(run.job) for run in state_of(workspace).runs.values()] == [True, False]  # an intent without a job

    sweep = begin(env, out, "sweep", "resume", "last")
    assert sweep.wait(90) == -signal.SIGKILL, out.read_text()
    voided = [run.void for run in state_of(workspace).runs.values()]
    assert voided == ["", "it was never queued", ""]

    sweep = begin(env, out, "sweep", "resume", "last")  # while the lost sbatch is still on its way
    until(lambda: any(run.job and run.open for run in state_of(workspace).runs.values()), "adopted job", out)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()

    done = subprocess.run(
        [sys.executable, "-m", "trackwalker", "sweep", "resume", "last", "--json"],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + out.read_text()
    said = json.loads(done.stdout)
    assert (said["schema"], said["status"]) == ("trackwalker.sweep/1", "finished")
    assert "adopted" in out.read_text() + done.stderr
    results = said["results"]
    assert sorted(row["trial"]["config"]["per_device_batch_size"] for row in results) == ["1", "2", "3"]
    assert {row["status"] for row in results} == {"ok"}
    assert all(row["score"] > 0 and row["steps"] >= 3 and row["attempt"] == 1 for row in results)

    # Slurm's own record: each trial's job ran once, and nothing else did.
    ran = [line for line in (slurm.dir / "jobcomp.log").read_text().splitlines() if said["id"] in line]
    assert len(ran) == 3
    assert sorted(row["job"] for row in results) == sorted(
        next(word.partition("=")[2] for word in line.split() if word.startswith("JobId=")) for line in ran
    )
    shown = subprocess.run(
        [sys.executable, "-m", "trackwalker", "sweep", "show", "last", "--json"],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(shown.stdout)["conclusion"] == said["conclusion"]


def test_on_this_machine_a_run_outlives_its_killed_sweep_and_is_adopted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    env = {**os.environ, "JOB_WORKSPACE": str(tmp_path / "outputs")}
    values = "per_device_batch_size=1,2"
    sweep = begin(env, out, "sweep", "batch", "tiny", "--on", "local", "--param", values, *WORDS, "--", *SETTINGS)
    until(lambda: any(run.started for run in state_of(tmp_path / "outputs").runs.values()), "running job", out)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()
    first = next(iter(state_of(tmp_path / "outputs").runs.values())).job
    done = subprocess.run(
        [sys.executable, "-m", "trackwalker", "sweep", "resume", "last", "--json"],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert {row["status"] for row in results} == {"ok"}
    assert first in [row["job"] for row in results]
    assert len(results) == len(list((tmp_path / "outputs").glob("local_*.log"))) == 2
