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
from standin_trainer import STEPS, put_stand_in

from trackwalker.sweep.plan import Plan, Setup
from trackwalker.sweep.state import State, load_state

pytestmark = [
    pytest.mark.disturbed_by_load(reason="a sweep is killed while a job of some seconds runs"),
    pytest.mark.timeout(300),
]

# The command itself, with a kind of sweep whose number of jobs does not depend on noise.
COMMAND = """
import sys
sys.path.insert(0, {tests!r})
from trackwalker.sweep import strategies
strategies.KINDS["line"] = "sweep_line:build_real"
from trackwalker.cli.app import main
main()
"""
# The second submission dies before it is made. The third one's caller dies, and the job is queued a moment later by an
# sbatch that nobody waits for any more: as after a kill -9 in the middle of a submission to a busy controller.
SBATCH = """\
#!/bin/bash
echo >> {count}
case $(wc -l < {count}) in
2) kill -9 $PPID; exit 1 ;;
3) kill -9 $PPID; sleep 2 ;; # the wait is the subject: queued when its caller is long gone
esac
exec {real} "$@"
"""
_TESTS = str(Path(__file__).parents[2] / "support")

LONGER = STEPS.replace("16", "80")  # eight seconds: longer than a sweep looks away


class Sweep:
    """A planned sweep that the real command runs, in processes that can be killed."""

    def __init__(self, folder: Path, on: str, values: list[int], nodes: list[str], env: dict[str, str]) -> None:
        self.out = folder / "out"
        request = {"values": values, "nodes": nodes, "trainer": str(put_stand_in(folder / "trainer", LONGER))}
        setup = Setup(on, str(folder / "outputs"))
        self.plan = Plan("line-20260101-000000-abcd", "line", request, setup, time.time())
        self.plan.save()
        self.env = {**env, "JOB_WORKSPACE": str(folder / "outputs")}

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", COMMAND.format(tests=_TESTS), "sweep", *words]
        with self.out.open("ab") as log:
            return subprocess.Popen(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(self, *words: str) -> dict[str, Any]:
        argv = [sys.executable, "-c", COMMAND.format(tests=_TESTS), "sweep", *words, "--json"]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=200, check=False)
        self.out.write_text(self.said + done.stderr)
        assert done.returncode == 0, self.said
        return dict(json.loads(done.stdout))

    @property
    def said(self) -> str:
        return self.out.read_text() if self.out.exists() else ""

    @property
    def state(self) -> State:
        return load_state(self.plan.folder)

    def until(self, ready: Callable[[State], Any], what: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not ready(self.state):
            assert time.monotonic() < deadline, f"no {what}: {self.said[-3000:]}"
            time.sleep(0.1)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_killed_while_submitting_and_while_a_job_runs_it_ends_in_the_same_table(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    wrapper = tmp_path / "bin" / "sbatch"
    wrapper.parent.mkdir()
    real = shutil.which("sbatch", path=slurm.env["PATH"])
    wrapper.write_text(SBATCH.format(real=real, count=tmp_path / "count"))
    wrapper.chmod(0o755)
    env = {**slurm.env, "PATH": f"{wrapper.parent}:{slurm.env['PATH']}"}
    sweep = Sweep(tmp_path, "slurm", [1, 2], slurm.names[:1], env)

    first = sweep.begin("resume", "last")
    sweep.until(lambda state: any(run.started for run in state.runs.values()), "running job")
    kill(first)
    assert sweep.begin("resume", "last").wait(200) == -signal.SIGKILL, sweep.said
    assert [bool(run.job) for run in sweep.state.runs.values()] == [True, False]  # an intent that nothing came of
    assert sweep.begin("resume", "last").wait(200) == -signal.SIGKILL, sweep.said
    assert [run.void for run in sweep.state.runs.values()] == ["", "it was never queued", ""]
    said = sweep.ask("resume", "last")  # while the lost sbatch is still on its way

    assert (said["schema"], said["status"], said["conclusion"]["final"]) == ("trackwalker.sweep/1", "finished", True)
    assert "x=2: job" in sweep.said
    assert "is there already, adopted" in sweep.said
    results = said["results"]
    assert [(row["key"], row["status"], row["attempt"]) for row in results] == [("x=1", "ok", 1), ("x=2", "ok", 1)]
    assert all(row["score"] > 0 and row["steps"] >= 3 for row in results)
    # Slurm's own record: each trial's job ran once, and nothing else did.
    ran = [line for line in (slurm.dir / "jobcomp.log").read_text().splitlines() if said["id"] in line]
    ids = [next(w.partition("=")[2] for w in line.split() if w.startswith("JobId=")) for line in ran]
    assert sorted(ids) == sorted(row["job"] for row in results)
    assert sweep.ask("show", "last")["conclusion"] == said["conclusion"]


def test_on_this_machine_a_run_outlives_its_killed_sweep_and_is_adopted(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, "local", [1, 2], [], dict(os.environ))
    first = sweep.begin("resume", "last")
    sweep.until(lambda state: any(run.started for run in state.runs.values()), "running job")
    kill(first)
    job = next(iter(sweep.state.runs.values())).job
    results = sweep.ask("resume", "last")["results"]
    assert [(row["key"], row["status"]) for row in results] == [("x=1", "ok"), ("x=2", "ok")]
    assert results[0]["job"] == job
    assert len(list((tmp_path / "outputs").glob("local_*.log"))) == 2
