"""A real Slurm where jobs end in every way: each state is told apart, and a real watcher tells every end once.

One night for all of it, because a lost node, a time limit and a controller that is away are minutes of waiting.
"""

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
from slurm_cluster import SlurmCluster, need_slurm, no_memory_limits
from slurm_run import submit_program
from slurm_submitter import NAME, Submitter, open_job

from trackwalker.job.slurm.states import JobState
from trackwalker.launch.slurm.client import Slurm, SlurmUnreachable
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.slurm.script import sbatch_options

pytestmark = [
    pytest.mark.disturbed_by_load(reason="a watcher, a controller and jobs that end, each on its own real clock"),
    pytest.mark.timeout(240),
]
RUN = "JAX-tiny"  # of the one job with a real agent
CONF = """
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL PriorityTier=9
"""
# The command itself; it asks Slurm every second instead of every fifteen and writes down what each question came to.
COMMAND = """
import sys
from trackwalker.launch.slurm.client import Slurm
from trackwalker.watch import asking
asking._EVERY_S[asking.SLURM] = 1.0
ask = Slurm.queue

def queue(self):
    told = "nobody answered"
    try:
        answer = ask(self)
        told = "answered"
        return answer
    finally:
        with open({asked!r}, "a") as out:
            print(told, file=out)

Slurm.queue = queue
from trackwalker.cli.app import main
main()
"""
# As MaxText says steps; ends when it is told to.
STEPS = """
import time
print("Config param steps:", 9000, flush=True)
for step in range(9000):
    print(f"completed step: {step}, seconds: 0.200, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0", flush=True)
    time.sleep(0.2)
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
        self._asked = at.workspace.parent / "asked"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = COMMAND.format(asked=str(self._asked))
        argv = [sys.executable, "-c", command, "watch", "--all", "--json", "-w", str(self._at.workspace)]
        with self._out.open("ab") as out:
            self.process = subprocess.Popen(argv, env=self._at.cluster.env, stdout=out, stderr=out)
        return self.process

    def asked(self, word: str) -> int:
        """How many questions to Slurm came to that."""
        return self._asked.read_text().splitlines().count(word) if self._asked.exists() else 0

    def asks(self, word: str) -> None:
        """Wait until two more questions came to that; the second is asked when the first answer was dealt with."""
        enough = self.asked(word) + 2
        self._at.cluster.wait_for(lambda: self.asked(word) >= enough, f"two questions to Slurm: {word}", 60)

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.read_text().split("\n")[:-1]]


@dataclass
class Night:
    """Jobs that ended in every way, by that way, and all that the watcher said."""

    jobs: dict[str, str] = field(default_factory=dict)
    urgent: str = ""
    silent: JobState | None = None  # of a job, while the controller was away
    silent_s: float = 0.0  # how long that answer took
    refused: list[str] = field(default_factory=list)  # what else was said then
    states: dict[str, JobState] = field(default_factory=dict)  # by ending, as Slurm is asked
    remembered: dict[str, str] = field(default_factory=dict)  # the same from the completion log alone
    out_of_time: str = ""  # the log of the run that reached its limit
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
            _ask_nobody(at, night)
            watcher.asks("nobody answered")
            night.early = ends(watcher.said())
            cluster.start_controller()
            running = lambda: at.slurm.state(night.jobs["completed"]).state == "running"  # noqa: E731
            cluster.wait_for(running, "the controller's answer", 30)
            watcher.asks("answered")
            night.urgent = _end(at, night.jobs)
            cluster.wait_for(lambda: at.slurm.state(night.jobs["cancelled"]).ended, "the first end", 30)
            watcher.process.kill()  # in the middle of it all
            watcher.process.wait()
            watcher.start()
            wanted = 7 + 2 * limited
            cluster.wait_for(lambda: len(ends(watcher.said())) >= wanted, "every end", 90)
            time.sleep(2)  # the wait is the subject: what would be told twice comes with the next looks, one a second
            night.said = watcher.said()
            night.out_of_time = at.log(night.jobs["timeout"], RUN)
            night.states = {end: at.slurm.state(job) for end, job in night.jobs.items()}
            left = {end: at.slurm._remembered(job) for end, job in night.jobs.items()}
            night.remembered = {end: state.state for end, state in left.items() if state}
            night.raw = {job: at.slurm.state(job).raw for job in (*night.jobs.values(), night.rank) if job}
            yield night
        finally:
            watcher.process.kill()
            watcher.process.wait()
            cluster.cancel_all()
        cluster.wait_for(lambda: not cluster.leftovers(), "end of all processes")
    assert not cluster.dir.exists()


def ends(said: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Job, state and severity of every end that was told; a verdict that takes long follows as an update of it."""
    told = [m for m in said if m["kind"] == "ended" and ":update-" not in m["key"]]
    return [(m["job"], m["facts"]["state"], m["severity"]) for m in told]


def test_every_end_is_told_once_and_rightly_across_a_silent_controller_and_a_killed_watcher(night: Night) -> None:
    assert night.early == []
    jobs = [(state, job) for state, job in night.jobs.items() if state != "oom"]
    wanted = sorted((job, state, SEVERITIES[state]) for state, job in [*jobs, ("completed", night.urgent)])
    assert night.ends({job for job, _, _ in wanted}) == wanted
    keys = [m["key"] for m in night.said]
    assert len(keys) == len(set(keys))


def test_r19_walltime_preemption_scancel_and_node_failure_are_told_apart(night: Night) -> None:
    exits = {"timeout": 124, "cancelled": 143, "preempted": 143, "node-fail": 1}
    assert {end: night.states[end].state for end in exits} == {end: end for end in exits}
    assert {end: night.states[end].exit for end in exits} == exits
    # All four, from the completion log alone: what is left once the controller has forgotten them.
    assert {end: night.remembered.get(end) for end in exits} == {end: end for end in exits}


def test_r19_a_time_limit_is_no_cancel(night: Night) -> None:
    assert night.out_of_time.count("JOB SUMMARY") == 1
    assert "  Status: FAILED (exit 124) — CANCELLED DUE TO TIME LIMIT\n" in night.out_of_time


def test_a_silent_controller_is_never_an_ending(night: Night) -> None:
    assert night.silent is not None
    assert night.silent_s < 4
    assert (night.silent.state, night.silent.ended, night.silent.exit) == ("unknown", False, None)
    cancel, submit = night.refused
    assert "did not answer" in cancel or "does not answer" in cancel
    assert "Unable to contact slurm controller" in submit


def test_want_of_memory_is_told_as_that_also_where_slurm_says_failed(night: Night) -> None:
    if why := no_memory_limits():
        pytest.skip(why)
    batch = night.jobs["oom"]
    # Slurm says it of a batch script alone. Ours starts agents with srun: when a rank is killed, the job failed.
    assert (night.raw[batch], night.raw[night.rank]) == ("OUT_OF_MEMORY", "FAILED")
    assert night.ends({batch, night.rank}) == sorted((job, "oom", "critical") for job in (batch, night.rank))
    told = [m for m in night.said if m["kind"] == "failure" and m["job"] == night.rank]
    (first,) = [m for m in told if ":update-" not in m["key"]]
    assert "rank 0" in first["title"]
    assert "the kernel killed it for want of memory" in first["title"]
    # A verdict that takes long follows in the same thread; who failed first is said once.
    assert {m["thread"] for m in told} == {first["thread"]}
    assert sum("failed first" in m["title"] for m in told) == 1


def _submit(at: Submitter) -> dict[str, str]:
    n = at.cluster.names
    jobs = {
        "completed": at.submit(SubmitOptions(nodelist=n[0]), code=0),
        "failed": at.submit(SubmitOptions(nodelist=n[1]), code=3),
        "cancelled": at.submit(SubmitOptions(nodelist=n[2])),
        "timeout": _submit_run(at, SubmitOptions(nodes=1, nodelist=n[3], time="5", signal_before_s=60)),
        "preempted": at.submit(SubmitOptions(nodelist=n[4])),
        "node-fail": at.submit(SubmitOptions(nodes=2, nodelist=f"{n[5]},{n[6]}")),
    }
    for ending, job in jobs.items():
        if ending != "timeout":
            open_job(at, job)
            at.until_up(job, 2 if ending == "node-fail" else 1)
    at.cluster.wait_for(lambda: "completed step: 2" in at.log(jobs["timeout"], RUN), "a run that steps", 40)
    return jobs


def _submit_run(at: Submitter, options: SubmitOptions) -> str:
    return submit_program(at.cluster, at.workspace, STEPS, options).id


def _ask_nobody(at: Submitter, night: Night) -> None:
    """What becomes of questions and orders while the controller is away."""
    job, impatient = night.jobs["completed"], Slurm(at.cluster.env, ask_s=2)
    began = time.monotonic()
    night.silent = impatient.state(job)
    night.silent_s = time.monotonic() - began
    for attempt in (lambda: impatient.cancel(job, NAME, os.getuid()), lambda: at.submit(SubmitOptions(nodes=1))):
        with pytest.raises(SlurmUnreachable) as refused:
            attempt()
        night.refused.append(str(refused.value))


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
    # Slurm looks at limits every 30 s and counts them in minutes. Its word before the end, which `--signal` asks for,
    # would be a minute of waiting; it is said here, and what follows is Slurm's own. A moment that has passed when the
    # controller reads it is refused, hence two seconds from now.
    cluster.client("scancel", "--batch", "--signal=USR1", jobs["timeout"])
    cluster.client("scontrol", "update", f"JobId={jobs['timeout']}", "EndTime=now+2")
    at.slurm.cancel(jobs["cancelled"], NAME, os.getuid())
    (at.workspace / "go").touch()
    urgent = at.submit(SubmitOptions(nodelist=cluster.names[4], partition="urgent"), seconds=0.1)
    for state in ("completed", "failed"):  # their agents are told to end, and do, each with its own exit code
        cluster.client("scancel", "--signal=TERM", jobs[state])
    return urgent
