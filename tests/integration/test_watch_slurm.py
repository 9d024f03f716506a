"""A real watcher on a real Slurm: every end is told once and rightly, also across a controller that is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_slurm_client import NAME, Submitter, open_job

from slurm_cluster import SlurmCluster, need_slurm
from trackwalker.launch.slurm.options import SubmitOptions

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
