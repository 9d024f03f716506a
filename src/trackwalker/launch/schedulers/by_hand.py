"""A run as on a cluster and without a scheduler: here in a container, or one node of several.

The node agent is the same as under Slurm and in a pod; what a scheduler would tell it, this tells it. Nodes that are
started by hand meet in the job directory, so they need one job id and a workspace that all of them see.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from trackwalker.errors import UsageError
from trackwalker.job.layout import ID_FORM
from trackwalker.launch.plan import new_local_id, short_hostname
from trackwalker.launch.request.validate import MOST_NODES
from trackwalker.launch.slurm.client import submit_environment
from trackwalker.launch.slurm.script import STALE
from trackwalker.launch.submission import Submission

COORDINATOR = ("JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT")


@dataclass(frozen=True)
class Place:
    """Which node of which job this is, as the environment was set by hand."""

    job_id: str
    nodes: int = 1
    rank: int = 0
    coordinator: tuple[str, ...] = ()  # as words behind `--`


def place_by_hand(env: Mapping[str, str]) -> Place:
    """JOB_ID, NNODES, NODE_RANK and the coordinator's address; on one node none of them is needed."""
    nodes = _number(env, "NNODES", 1, 1, MOST_NODES)
    rank = _number(env, "NODE_RANK", 0, 0, nodes - 1)
    job_id = env.get("JOB_ID", "")
    if not job_id and nodes > 1:
        raise UsageError(
            f"NNODES={nodes}: the nodes meet by their JOB_ID; set the same, as {_new_id()}, on all of them"
        )
    if job_id and not ID_FORM.match(job_id):
        raise UsageError(f"JOB_ID={job_id} is no job id; one that is: {_new_id()}")
    given = tuple(f"_env_{name}={env[name]}" for name in COORDINATOR if env.get(name)) if nodes > 1 else ()
    return Place(job_id or _new_id(), nodes, rank, given)


class RunByHand:
    """A started node: look after it, end it."""

    def __init__(self, submission: Submission, place: Place) -> None:
        self.record = submission.record.model_copy(update={"id": place.job_id})
        self.job_dir = submission.order.workspace / f"{place.job_id}-{submission.order.name}"
        self.log = self.job_dir.parent / f"{self.job_dir.name}.log"
        if place.rank:
            self.log = self.job_dir / f"rank-{place.rank}.log"
        elif (self.job_dir / "events.jsonl").exists():
            raise UsageError(f"job {place.job_id} has run already: set another JOB_ID on all nodes")
        submission.write()
        if place.rank == 0:
            submission.open_job(place.job_id)
        folder = submission.folder
        self.said = folder / "agent.log"
        gone = {*STALE.split(), "NODE_NAME"}
        env = {k: v for k, v in submit_environment(os.environ).items() if k not in gone}
        seat = {"JOB_ID": place.job_id, "JOB_COMPLETION_INDEX": str(place.rank), "NODE_NAME": short_hostname()}
        with self.said.open("ab") as out:
            self._agent = subprocess.Popen(
                [sys.executable, str(folder / "agent.pyz"), "node", str(folder / "order.json")],
                env={**env, **seat},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def supervise(self) -> int | None:
        """The exit code once the agent has ended: the job's on the first node."""
        return self._agent.poll()

    def cancel(self) -> None:
        """Ask the agent to end the run; it tells the ranks and writes the summary."""
        if self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)

    def wait_closed(self) -> None:
        """Nothing outlives the agent."""


def _number(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = env.get(name) or str(default)
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise UsageError(f"{name}={text}: a whole number from {least} to {most} is needed")
    return int(text)


def _new_id() -> str:
    return new_local_id(time.time())
