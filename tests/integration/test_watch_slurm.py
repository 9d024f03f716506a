"""A real watcher on a real Slurm: every end is told once and rightly, also across a controller that is away."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from test_slurm_client import NAME, Submitter, open_job

from slurm_cluster import SlurmCluster, need_slurm, no_memory_limits
from slurm_run import submit_program
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.slurm.script import sbatch_options

pytestmark = [pytest.mark.timeout(240)]
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
print("hungry", flush=True)
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


@dataclass
class Night:
    """Jobs that ended in every way, by that way, and all that the watcher said."""

    jobs: dict[str, str] = field(default_factory=dict)
    urgent: str = ""
    rank: str = ""  # the job whose rank the kernel killed
    raw: dict[str, str] = field(default_factory=dict)  # Slurm's own words
    early: list[tuple[str, str, str]] = field(default_factory=list)  # ends told while the controller was away
    said: list[dict[str, Any]] = field(default_factory=list)

    def ends(self, jobs: set[str]) -> list[tuple[str, str, str]]:
        """State and severity of the ends of these jobs."""
        return sorted(end for end in ends(self.said) if end[0] in jobs)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    need_slurm()
    limited = not no_memory_limits()
    with SlurmCluster(9, conf=CONF, slurmd_timeout=5, memory_mb=2000 if limited else 0) as cluster:
        at = Submitter(cluster, tmp_path_factory.mktemp("outputs"))
        night = Night()
        watcher = Watcher(at)
        try:
            night.jobs = _submit(at)
            if limited:
                night.jobs["oom"], night.rank = _submit_hungry(at)
            # The controller goes away while jobs run: nobody may be told that anything ended.
            cluster.stop_controller()
            time.sleep(18)  # longer than the watcher waits between two questions
            night.early = ends(watcher.said())
            cluster.start_controller()
            running = lambda: at.slurm.state(night.jobs["completed"]).state == "running"  # noqa: E731
            cluster.wait_for(running, "the controller's answer", 30)
            night.urgent = _end(at, night.jobs)
            cluster.wait_for(lambda: at.slurm.state(night.jobs["cancelled"]).ended, "the first end", 30)
            watcher.process.kill()  # in the middle of it all
            watcher.process.wait()
            watcher.start()
            wanted = 7 + 2 * limited
            cluster.wait_for(lambda: len(ends(watcher.said())) >= wanted, "every end", 90)
            time.sleep(2)  # for what would be told twice
            night.said = watcher.said()
            night.raw = {job: at.slurm.state(job).raw for job in (*night.jobs.values(), night.rank) if job}
            yield night
        finally:
            watcher.process.kill()
            watcher.process.wait()
            cluster.cancel_all()


def ends(said: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Job, state and severity of every end that was told."""
    return [(m["job"], m["facts"]["state"], m["severity"]) for m in said if m["kind"] == "ended"]


def test_every_end_is_told_once_and_rightly_across_a_silent_controller_and_a_killed_watcher(night: Night) -> None:
    assert night.early == []
    jobs = [(state, job) for state, job in night.jobs.items() if state != "oom"]
    wanted = sorted((job, state, SEVERITIES[state]) for state, job in [*jobs, ("completed", night.urgent)])
    assert night.ends({job for job, _, _ in wanted}) == wanted
    keys = [m["key"] for m in night.said]
    assert len(keys) == len(set(keys))


def test_want_of_memory_is_told_as_that_also_where_slurm_says_failed(night: Night) -> None:
    if why := no_memory_limits():
        pytest.skip(why)
    batch = night.jobs["oom"]
    # Slurm says it of a batch script alone. Ours starts agents with srun: when a rank is killed, the job failed.
    assert (night.raw[batch], night.raw[night.rank]) == ("OUT_OF_MEMORY", "FAILED")
    assert night.ends({batch, night.rank}) == sorted((job, "oom", "critical") for job in (batch, night.rank))
    (first,) = [m for m in night.said if m["kind"] == "failure" and m["job"] == night.rank]
    assert "rank 0" in first["title"]
    assert "the kernel killed it for want of memory" in first["title"]


def _submit(at: Submitter) -> dict[str, str]:
    n = at.cluster.names
    jobs = {
        "completed": at.submit(SubmitOptions(nodelist=n[0]), code=0),
        "failed": at.submit(SubmitOptions(nodelist=n[1]), code=3),
        "cancelled": at.submit(SubmitOptions(nodelist=n[2])),
        "timeout": at.submit(SubmitOptions(nodelist=n[3], time="5")),
        "preempted": at.submit(SubmitOptions(nodelist=n[4])),
        "node-fail": at.submit(SubmitOptions(nodes=2, nodelist=f"{n[5]},{n[6]}")),
    }
    for job in jobs.values():
        open_job(at, job)
    for ending, job in jobs.items():
        at.until_up(job, 2 if ending == "node-fail" else 1)
    return jobs


def _submit_hungry(at: Submitter) -> tuple[str, str]:
    """A batch script, and a rank of a real agent, that will want more than their job has."""
    n, program = at.cluster.names, EATS.format(go=str(at.workspace / "go"))
    script = at.workspace / ".submissions" / "batch" / "job.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/bash\n{sys.executable} -c {shlex.quote(program)}\n")
    options = SubmitOptions(nodelist=n[7], extra=["--mem=100"])
    batch = at.slurm.submit(script, sbatch_options(options, NAME, at.workspace, script.parent)).id
    options = SubmitOptions(nodes=1, nodelist=n[8], extra=["--mem=400"])
    rank = submit_program(at.cluster, at.workspace, program, options)
    hungry = lambda: "hungry" in at.log(batch) and rank.log.exists() and "hungry" in rank.log.read_text()  # noqa: E731
    at.cluster.wait_for(hungry, "two programs that want memory", 40)
    return batch, rank.id


def _end(at: Submitter, jobs: dict[str, str]) -> str:
    """Bring about every end; the job that others make room for is one of this workspace as well, with a log alone."""
    cluster = at.cluster
    cluster.kill_node(cluster.names[6])
    cluster.client("scontrol", "update", f"JobId={jobs['timeout']}", "EndTime=now")
    at.slurm.cancel(jobs["cancelled"], NAME, os.getuid())
    (at.workspace / "go").touch()
    urgent = at.submit(SubmitOptions(nodelist=cluster.names[4], partition="urgent"), seconds=0.1)
    for state in ("completed", "failed"):  # their agents are told to end, and do, each with its own exit code
        cluster.client("scancel", "--signal=TERM", jobs[state])
    return urgent
