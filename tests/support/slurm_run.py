"""A job on the test's own Slurm, followed from outside."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

from slurm_cluster import SlurmCluster

from trackwalker.job.journal import read
from trackwalker.job.processes import read_stat
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.slurm import Queued, plan_batch, submit
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.submission import How, plan_submission


def submit_program(
    cluster: SlurmCluster, workspace: Path, program: str, options: SubmitOptions, auto_resume: int = 0
) -> Queued:
    """A run of one node whose rank is a Python program of the test's, with the real agent around it."""
    planned = plan_submission(Asked("tiny", nodes=1, workspace=workspace), How("slurm", ["submit", "tiny"]))
    order = dataclasses.replace(planned.order, argv=[sys.executable, "-c", program], output=None)
    record = planned.record.model_copy(update={"auto_resume": auto_resume})
    slurm = Slurm(cluster.env)
    quick = dataclasses.replace(planned, order=order, record=record)
    return submit(plan_batch(quick, options, slurm, sys.executable), slurm)


class Run:
    """Its log, its end, its events and its processes."""

    def __init__(self, cluster: SlurmCluster, queued: Queued) -> None:
        self.cluster, self.id, self.dir, self.log = cluster, queued.id, queued.job_dir, queued.log
        self.slurm = Slurm(cluster.env)

    @property
    def text(self) -> str:
        """The merged log."""
        return self.log.read_text() if self.log.exists() else ""

    def says(self, words: str, seconds: float = 40.0) -> None:
        """Wait until the log holds these words."""
        self.cluster.wait_for(lambda: words in self.text, f"{words!r} in the log:\n{self.text[-2000:]}", seconds)

    def ends(self, seconds: float = 60.0) -> str:
        """Wait for its end, and that nothing of it is left; the state Slurm gives it."""
        self.cluster.wait_for(lambda: self.slurm.state(self.id).ended, f"end of job {self.id}", seconds)
        self.cluster.wait_for(lambda: not self.cluster.leftovers(), "nothing left running", 20)
        return self.slurm.state(self.id).state

    def events(self, kind: str) -> list[dict[str, object]]:
        """The events of a kind."""
        return [e for e in read(self.dir / "events.jsonl").items if e["kind"] == kind]

    def summary(self) -> str:
        """The status line of the one summary."""
        assert self.text.count("JOB SUMMARY") == 1, self.text[-3000:]
        return next(line.strip() for line in self.text.splitlines() if line.startswith("  Status:"))

    def rank_pid(self, rank: int) -> int:
        """The trainer process of a rank."""
        state = self.dir / "agent" / ("state.json" if rank == 0 else f"n{rank + 1}.state.json")
        self.cluster.wait_for(state.exists, "the agent's state")
        return int(json.loads(state.read_text())["ranks"][0]["main"])

    def agents(self, node: str) -> list[int]:
        """Keeper and agent on a node, in this order."""
        mark, found = f"SLURMD_NODENAME={node}\0".encode(), []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
                env = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            mine = mark in env and str(self.cluster.conf).encode() in env
            if mine and b"agent.pyz\0node" in words and b"srun" not in words.split(b"\0")[0]:
                found.append(int(name))
        return sorted(found, key=lambda pid: (stat.start if (stat := read_stat(pid)) else 0, pid))
