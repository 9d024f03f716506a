"""A real watcher on a real Slurm: every end is told once and rightly, also across a controller that is away."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_slurm_client import NAME, Submitter, open_job

from slurm_cluster import SlurmCluster, need_memory_groups, need_slurm
from slurm_run import submit_program
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.slurm.script import sbatch_options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
CONF = """
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL PriorityTier=9
"""
SEVERITIES = {
    "completed": "info",
    "failed": "critical",
    "cancelled": "info",
    "timeout": "warning",
    "preempted": "warning",
    "node-fail": "critical",
}
EATS = """
import pathlib, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.1)
held = [bytearray(b"x" * (64 << 20)) for _ in range(16)]  # a gigabyte
"""


class Watcher:
    """The command, which can be killed and started again."""

    def __init__(self, at: Submitter) -> None:
        self._at = at
        self._out = at.workspace / "watch.out"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "trackwalker", "watch", "--all", "--json", "-w", str(self._at.workspace)]
        with self._out.open("ab") as out:
            self.process = subprocess.Popen(argv, env=self._at.cluster.env, stdout=out, stderr=out)
        return self.process

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.read_text().split("\n")[:-1]]

    def ends(self) -> list[tuple[str, str, str]]:
        """Job, state and severity of every end that was told."""
        return [(m["job"], m["facts"]["state"], m["severity"]) for m in self.said() if m["kind"] == "ended"]


def test_every_end_is_told_once_and_rightly_across_a_silent_controller_and_a_killed_watcher(tmp_path: Path) -> None:
    need_slurm()
    with SlurmCluster(7, conf=CONF, slurmd_timeout=5) as cluster:
        at = Submitter(cluster, tmp_path)
        watcher = Watcher(at)
        try:
            jobs = _submit(at)
            # The controller goes away while jobs run: nobody may be told that anything ended.
            cluster.stop_controller()
            time.sleep(18)  # longer than the watcher waits between two questions
            assert watcher.ends() == []
            cluster.start_controller()
            cluster.wait_for(
                lambda: at.slurm.state(jobs["completed"]).state == "running", "the controller's answer", 30
            )
            urgent = _end(at, jobs)
            cluster.wait_for(lambda: at.slurm.state(jobs["cancelled"]).ended, "the first end", 30)
            watcher.process.kill()  # in the middle of it all
            watcher.process.wait()
            watcher.start()
            ends = [*jobs.items(), ("completed", urgent)]
            wanted = sorted((job, state, SEVERITIES[state]) for state, job in ends)
            cluster.wait_for(lambda: len(watcher.ends()) >= len(wanted), f"seven ends: {watcher.ends()}", 90)
            time.sleep(2)
            assert sorted(watcher.ends()) == wanted
            keys = [m["key"] for m in watcher.said()]
            assert len(keys) == len(set(keys))
        finally:
            watcher.process.kill()
            watcher.process.wait()
            cluster.cancel_all()


def _submit(at: Submitter) -> dict[str, str]:
    jobs = {
        "completed": at.submit(SubmitOptions(nodelist="n1"), code=0),
        "failed": at.submit(SubmitOptions(nodelist="n2"), code=3),
        "cancelled": at.submit(SubmitOptions(nodelist="n3")),
        "timeout": at.submit(SubmitOptions(nodelist="n4", time="5")),
        "preempted": at.submit(SubmitOptions(nodelist="n5")),
        "node-fail": at.submit(SubmitOptions(nodes=2, nodelist="n[6-7]")),
    }
    for job in jobs.values():
        open_job(at, job)
    for ending, job in jobs.items():
        at.until_up(job, 2 if ending == "node-fail" else 1)
    return jobs


def _end(at: Submitter, jobs: dict[str, str]) -> str:
    """Bring about every end; the job that others make room for is one of this workspace as well, with a log alone."""
    cluster = at.cluster
    cluster.kill_node("n7")
    cluster.client("scontrol", "update", f"JobId={jobs['timeout']}", "EndTime=now")
    at.slurm.cancel(jobs["cancelled"], NAME, os.getuid())
    urgent = at.submit(SubmitOptions(nodelist="n5", partition="urgent"), seconds=0.1)
    for state in ("completed", "failed"):  # their agents are told to end, and do, each with its own exit code
        cluster.client("scancel", "--signal=TERM", jobs[state])
    return urgent


def test_a_job_without_memory_is_told_as_that_also_where_slurm_says_failed(tmp_path: Path) -> None:
    need_memory_groups()
    with SlurmCluster(2, memory_mb=2000) as cluster:
        at = Submitter(cluster, tmp_path)
        watcher: Watcher | None = None
        try:
            # Slurm says it of a batch script. Ours starts agents with srun, and then it says that the job failed.
            go = tmp_path / "go"
            eats = EATS.format(go=str(go))
            script = _script(tmp_path, f"{sys.executable} -c {shlex.quote(eats)}")
            little = SubmitOptions(nodes=1, extra=["--mem=100"])
            batch = at.slurm.submit(script, sbatch_options(little, NAME, tmp_path, script.parent)).id
            rank = submit_program(cluster, tmp_path, eats, SubmitOptions(nodes=1, extra=["--mem=400"]))
            for job in (batch, rank.id):
                at.until(job, lambda state: state.state == "running")
            watcher = Watcher(at)
            journal = tmp_path / ".watch" / "journal.jsonl"
            known = lambda: journal.exists() and journal.read_text().count('"path"') >= 2  # noqa: E731
            cluster.wait_for(known, "two jobs that the watcher knows", 40)
            go.touch()
            assert at.until(batch, lambda state: state.ended).raw == "OUT_OF_MEMORY"
            assert at.until(rank.id, lambda state: state.ended).raw == "FAILED", rank.log.read_text()[-2000:]
            cluster.wait_for(lambda: len(watcher.ends()) >= 2, f"two ends: {watcher.said()}", 60)
            assert sorted(watcher.ends()) == sorted((job, "oom", "critical") for job in (batch, rank.id))
            (first,) = [m for m in watcher.said() if m["kind"] == "failure"]
            assert "rank 0" in first["title"]
            assert "the kernel killed it for want of memory" in first["title"]
            assert "oom-host" in first["facts"]["verdict"]
        finally:
            if watcher is not None:
                watcher.process.kill()
                watcher.process.wait()
            cluster.cancel_all()


def _script(workspace: Path, command: str) -> Path:
    script = workspace / ".submissions" / "batch" / "job.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/bash\n{command}\n")
    return script
