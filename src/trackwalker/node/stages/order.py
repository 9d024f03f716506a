"""What the launcher asks of every node of a job: the same words for all, written before the job is queued.

A node finds out by itself which of them it is: the scheduler's environment says it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from trackwalker.node.sensors.commands import ask

_ASK_S = 10.0
RUN_ID = "TRACKWALKER_RUN_ID"  # of a run inside an allocation, which is not the allocation's own
STAGES = {"preflight": "Preflight", "pull": "Docker pull", "health": "ECC check", "train": "Training"}


@dataclass(frozen=True)
class Order:
    """One job: what each rank executes, and what has to hold before it may."""

    name: str
    model: str
    scheduler: str  # slurm, kubernetes
    workspace: Path
    nodes: int
    argv: list[str]  # the trainer's program and what it needs before its settings
    settings: list[str] = field(default_factory=list)  # key=value, the user's bytes
    output: Optional[str] = None  # where the trainer writes: empty for the job directory, None when it is not told
    steps: Optional[int] = None  # that the trainer is to complete, where that is known
    procs: int = 1  # rank processes on each node
    env: dict[str, str] = field(default_factory=dict)  # of the layers; what a node detects goes above it
    layers: dict[str, dict[str, str]] = field(default_factory=dict)  # "amd/ionic" -> env in its place, on such a node
    overrides: dict[str, str] = field(default_factory=dict)  # the user's own: above everything
    workdir: str = ""  # where ranks start: the code snapshot
    header: list[str] = field(default_factory=list)  # further lines of the log's header
    timeouts: dict[str, Optional[float]] = field(default_factory=dict)  # stage -> seconds, None: no limit
    policy: dict[str, str] = field(default_factory=dict)  # check -> fail, warn, off
    expected_gpus: Optional[int] = None
    grace_s: float = 10.0
    tensorboard: str = ""  # relative to the job directory, or absolute
    listen: str = ""
    services: dict[str, list[str]] = field(default_factory=dict)  # beside training; see job/shards.py for where
    container: Optional[dict[str, Any]] = None  # runtime and image; None: no container
    flags: dict[str, Any] = field(default_factory=dict)  # of the command line, as the launcher was given them

    @property
    def world(self) -> int:
        """How many rank processes there are."""
        return self.nodes * self.procs


@dataclass(frozen=True)
class Seat:
    """Which node this is, of which attempt of which job."""

    job_id: str
    node_rank: int
    host: str
    attempt: int = 0

    @property
    def is_head(self) -> bool:
        """Whether this node speaks for the job."""
        return self.node_rank == 0


class NoSeat(Exception):
    """The environment does not say which node of which job this is."""


def load_order(path: Path) -> Order:
    """Read an order written by the launcher."""
    raw: dict[str, Any] = json.loads(path.read_text())
    raw["workspace"] = Path(raw["workspace"])
    return Order(**raw)


def find_seat(env: Mapping[str, str]) -> Seat:
    """Which node this is, from Slurm's or Kubernetes' environment."""
    host = env.get("TRACKWALKER_NODE") or env.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    if env.get(RUN_ID) and env.get("SLURM_NODEID"):
        return Seat(env[RUN_ID], int(env["SLURM_NODEID"]), host)
    if env.get("SLURM_JOB_ID") and env.get("SLURM_NODEID"):
        attempt = int(env.get("SLURM_RESTART_COUNT") or 0)
        return Seat(env["SLURM_JOB_ID"], int(env["SLURM_NODEID"]), host, attempt)
    if env.get("JOB_ID") and env.get("JOB_COMPLETION_INDEX"):
        node = env.get("NODE_NAME") or host
        return Seat(env["JOB_ID"], int(env["JOB_COMPLETION_INDEX"]), node)
    raise NoSeat(
        "neither Slurm (SLURM_JOB_ID, SLURM_NODEID) nor Kubernetes (JOB_ID, JOB_COMPLETION_INDEX) started this"
    )


def slurm_hosts(env: Mapping[str, str]) -> list[str]:
    """The job's nodes in the order of their ranks, for naming those that never came; empty where nobody knows."""
    if not env.get("SLURM_JOB_NODELIST"):
        return []
    answer = ask(["scontrol", "show", "hostnames", env["SLURM_JOB_NODELIST"]], _ASK_S)
    return answer.output.split() if answer.code == 0 else []
