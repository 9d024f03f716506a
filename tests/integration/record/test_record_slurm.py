"""An unmodified sbatch script with one word in front, on a real Slurm of four nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_here import call_here
from ports import free_ports
from slurm_cluster import SlurmCluster

from trackwalker.lab.real.inject import inject
from trackwalker.lab.real.victim import Victim

TRAINER = Path(__file__).parents[2] / "support" / "megatron_style.py"
RECORD = f"{sys.executable} -m trackwalker record --"
SCRIPT = """#!/bin/bash
#SBATCH -N 4 --ntasks-per-node=1 -J pretrain
export MASTER_PORT={port}
srun {record} {python} {trainer} {steps} {pace}
"""


class Run:
    """One job from its script to its verdict."""

    def __init__(
        self, slurm: SlurmCluster, where: Path, steps: int, record: str = RECORD, name: str = "megatron_style",
        pace: str = "0.2",
    ) -> None:  # fmt: skip
        self.slurm, self.workspace, self.out, self.name = slurm, where / "outputs", where / "slurm.out", name
        script = where / "job.sbatch"
        about = {"record": record, "python": sys.executable, "trainer": TRAINER, "steps": steps, "pace": pace}
        script.write_text(SCRIPT.format(port=free_ports(1)[0], **about))
        env = {**slurm.env, "JOB_WORKSPACE": str(self.workspace)}
        options = ["-o", str(self.out), "-D", str(where)]
        if name == "submitted":  # by us, the script as it is
            self.name = "megatron_style"
            argv = [sys.executable, "-m", "trackwalker", "submit", "--script", str(script), *options, "--json"]
        else:
            argv = ["sbatch", "--parsable", *options, str(script)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.id = str(json.loads(done.stdout)["id"]) if name == "submitted" else done.stdout.strip()

    @property
    def dir(self) -> Path:
        return self.workspace / f"{self.id}-{self.name}"

    def records(self, name: str) -> list[dict[str, Any]]:
        path = self.dir / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_steps(self, count: int) -> None:
        self.slurm.wait_for(lambda: len(self.records("progress.jsonl")) >= count, f"{count} steps", 120)

    def goes_on(self, steps: int, seconds: float) -> None:
        """A stretch of at least so many steps and so long, however slow this machine is."""
        count, until = len(self.records("progress.jsonl")) + steps, time.monotonic() + seconds
        self.slurm.wait_for(
            lambda: time.monotonic() > until and len(self.records("progress.jsonl")) >= count, f"{count} steps", 300
        )

    def pid_of(self, rank: int) -> int:
        note = json.loads((self.dir / "agent/attempt-0/tasks" / f"{rank}.json").read_text())
        return int(note["pid"])

    def ended(self, seconds: float = 120) -> None:
        self.slurm.wait_for(
            lambda: not self.slurm.client("squeue", "-h", "-j", self.id, check=False).strip(), "end", seconds
        )
        self.slurm.wait_for(lambda: any(e["kind"] == "run-end" for e in self.records("events.jsonl")), "last word", 60)

    def verdict(self) -> dict[str, Any]:
        done = call_here(os.environ, "diagnose", str(self.dir), "--json")
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def verdict_while_stopped(self, rank: int) -> dict[str, Any]:
        """What is said of the run while one of its ranks is stopped; then that one goes on."""
        self.wait_steps(60)
        pid = self.pid_of(rank)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(40)  # the wait is the subject: a rank that says nothing for long enough to be a hang
            return self.verdict()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def root_of(verdict: dict[str, Any]) -> tuple[str, list[str]]:
    roots = [c for c in verdict["causes"] if c["role"] == "root"]
    return (roots[0]["cause"], roots[0]["hosts"]) if roots else ("", [])


def test_a_healthy_run_is_recorded_by_its_first_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Run(slurm, tmp_path, steps=60)
    run.ended()
    assert [r["step"] for r in run.records("progress.jsonl")] == list(range(1, 61))
    assert {r["host"] for r in run.records("progress.jsonl")} == {"n4"}  # Megatron prints on its last rank
    places = json.loads((run.dir / "run.json").read_text())["ranks"]
    assert [(p["rank"], p["host"]) for p in places] == [(0, "n1"), (1, "n2"), (2, "n3"), (3, "n4")]
    log = (run.workspace / f"{run.dir.name}.log").read_text()
    assert log.count("elapsed time per iteration") == 60
    assert "3:  [" in log
    assert "Status: SUCCESS" in log
    verdict = run.verdict()
    assert verdict["outcome"] == "healthy", verdict["summary"]
    said = run.out.read_text()
    assert said.count("elapsed time per iteration") == 60
    assert "trackwalker: healthy" in said


@pytest.mark.long(reason="another job on Slurm, killed in the middle")
def test_a_killed_rank_is_named(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Run(slurm, tmp_path, steps=2000)
    run.wait_steps(30)
    os.kill(run.pid_of(2), signal.SIGKILL)
    run.ended()
    first = run.records("events.jsonl")[-1]["data"]["first"]
    assert (first["rank"], first["host"], first["exit"]) == (2, "n3", 137)
    assert root_of(run.verdict()) == ("peer-died", ["n3"])


@pytest.mark.long(reason="a hang lasts most of a minute before it may be called one")
def test_a_stopped_rank_is_named(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Run(slurm, tmp_path, steps=2000)
    verdict = run.verdict_while_stopped(1)
    slurm.client("scancel", run.id)
    run.ended()
    assert root_of(verdict)[1] == ["n2"], verdict["summary"]


@pytest.mark.long(reason="two more jobs on Slurm")
def test_cancelled_by_the_user(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Run(slurm, tmp_path, steps=2000)
    run.wait_steps(10)
    slurm.client("scancel", run.id)
    run.ended()
    assert root_of(run.verdict())[0] in ("user-cancel", "")


def test_a_script_of_ones_own_is_queued_as_it_is_and_recorded(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Run(slurm, tmp_path, steps=40, record="", name="submitted")
    run.ended()
    assert [r["step"] for r in run.records("progress.jsonl")] == list(range(1, 41))
    assert {p["host"] for p in json.loads((run.dir / "run.json").read_text())["ranks"]} == {"n1", "n2", "n3", "n4"}
    assert slurm.client("scontrol", "show", "job", "-o", run.id).count("JobName=pretrain ") == 1
    assert "trackwalker: healthy" in run.out.read_text()


class Joined(Run):
    """A job that nobody records, joined once it has printed some steps."""

    def __init__(self, slurm: SlurmCluster, where: Path, steps: int, pace: str = "0.2") -> None:
        super().__init__(slurm, where, steps, record="", name="pretrain", pace=pace)
        slurm.wait_for(lambda: self.out.exists() and self.out.read_text().count("elapsed time") >= 10, "steps", 60)
        argv = [sys.executable, "-m", "trackwalker", "attach", "--slurm", self.id, "--workspace", str(self.workspace)]
        self.said = where / "attach.out"
        with self.said.open("wb") as out:
            self.attach = subprocess.Popen(argv, env=slurm.env, stdout=out, stderr=out)

    def left(self) -> str:
        """What it said when the job was over."""
        assert self.attach.wait(120) == 0, self.said.read_text()
        return self.said.read_text()


def test_a_run_is_joined_in_the_middle(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Joined(slurm, tmp_path, steps=90)
    run.ended()
    said = run.left()
    steps = [r["step"] for r in run.records("progress.jsonl")]
    assert steps[-1] == 90
    assert steps == list(range(steps[0], 91)), "every step since then, once"
    assert steps[0] > 1
    log = (run.workspace / f"{run.dir.name}.log").read_text()
    assert log.count("elapsed time per iteration") == 90, "its log from the beginning"
    places = json.loads((run.dir / "run.json").read_text())["ranks"]
    assert [(p["rank"], p["host"]) for p in places] == [(0, "n1"), (1, "n2"), (2, "n3"), (3, "n4")]
    assert run.records("events.jsonl")[-1]["data"]["exit"] is None, "no exit code is claimed"
    assert "trackwalker: healthy" in said


@pytest.mark.long(reason="a hang lasts most of a minute before it may be called one")
def test_a_rank_stopped_in_a_joined_run_is_named(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Joined(slurm, tmp_path, steps=2000)
    verdict = run.verdict_while_stopped(1)
    slurm.client("scancel", run.id)
    run.left()
    assert root_of(verdict)[1] == ["n2"], verdict["summary"]


@pytest.mark.long(reason="another job on Slurm, killed in the middle")
def test_a_rank_killed_in_a_joined_run_is_named(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = Joined(slurm, tmp_path, steps=2000)
    run.wait_steps(30)
    os.kill(run.pid_of(2), signal.SIGKILL)
    run.left()
    assert root_of(run.verdict()) == ("peer-died", ["n3"]), run.verdict()["summary"]


@pytest.mark.long(reason="a slow phase has to last a while to be one")
@pytest.mark.disturbed_by_load(reason="a rank is starved of CPU on a machine that others use, too")
@pytest.mark.parametrize("kind", [Run, Joined])
def test_a_rank_starved_of_cpu_is_named(slurm: SlurmCluster, tmp_path: Path, kind: type[Run]) -> None:
    run = kind(slurm, tmp_path, steps=2000, pace="0 0.05")  # each rank computes: that is what a hog takes away
    run.wait_steps(1)
    run.goes_on(100, 30)
    with inject("cpu", Victim(2, "n3", run.pid_of(2), run.dir)):
        run.goes_on(30, 30)
        verdict = run.verdict()
    slurm.client("scancel", run.id)
    run.ended()
    assert root_of(verdict)[1] == ["n3"], verdict["summary"]
