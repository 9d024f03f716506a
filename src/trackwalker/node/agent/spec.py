"""What the launcher asks of an agent: which ranks to run here, and where to write."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RankSpec:
    """One rank process: its place in the job, the lane it reports as, its command and its own environment."""

    rank: int
    host: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""  # where it starts: the code snapshot; empty: where the agent did
    # Of a rank that somebody else started, and that is only watched (`trackwalker record`, `attach`):
    pid: int = 0
    start: int = 0
    command: list[int] = field(default_factory=list)  # pid and start time of the recorded command: itself or above it
    files: str = ""  # <files>.out, .exit, .told: the command's output, exit code and the signals it was sent
    speaks: bool = True  # the command's output counts as this rank's
    old: int | None = None  # `attach`: as much of its output was there before us; None: recorded from its start


@dataclass(frozen=True)
class AgentSpec:
    """One node's share of a job."""

    job_id: str
    job_name: str
    model: str
    node: str
    job_dir: Path
    log: Path | None  # None: standard output, which the scheduler collects
    ranks: list[RankSpec]
    world: int
    grace_s: float = 10.0
    limit_s: float | None = None  # how long the ranks may run
    steps: int | None = None  # that the trainer is to complete, where that is known
    nodes: int = 1
    attempt: int = 0
    warning: Path | None = None  # there when the scheduler has said that the time limit is near
    stop_note: Path | None = None  # there when the scheduler has told its batch script, and only that, to end
    own: Path | None = None  # where this node keeps working files and journals; None: where the job has them
    tensorboard: Path | None = None  # where rank 0 writes its event files; None: tensorboard/ in the job directory
    crew: dict[str, Any] = field(
        default_factory=dict
    )  # of a recorded command on several nodes: see node/agent/joining.py
    listen: str = ""  # interface, address or network to serve metrics on; empty: loopback or a private address

    @property
    def is_first(self) -> bool:
        """Whether this is the job's first node."""
        return any(rank.rank == 0 for rank in self.ranks)

    @property
    def owns(self) -> bool:
        """Whether the agent starts and ends its ranks; those of a recorded command it only watches."""
        return not any(rank.command for rank in self.ranks)

    @property
    def attached(self) -> bool:
        """Whether the ranks had begun before the agent came: nobody can tell it how they end."""
        return any(rank.old is not None for rank in self.ranks)

    @property
    def state_file(self) -> Path:
        """Process ids and read offsets, so that a new agent can take over from a dead one."""
        return self.job_dir / "agent" / ("state.json" if self.is_first else f"{self.node}.state.json")

    @property
    def spec_file(self) -> Path:
        """Where these orders are written, for an agent that begins anew."""
        return self.job_dir / "agent" / ("spec.json" if self.nodes == 1 else f"{self.node}.spec.json")

    @property
    def ranks_dir(self) -> Path:
        """The raw output of the ranks, while they run."""
        return self.own / "ranks" if self.own else self.job_dir / "ranks"

    def journal(self, name: str) -> Path:
        """Where this node writes events or progress: the job's own file has one writer, the first node."""
        return self.job_dir / name if self.is_first or self.own is None else self.own / name


def load_spec(path: Path) -> AgentSpec:
    """Read a spec written by the launcher."""
    raw: dict[str, Any] = json.loads(path.read_text())
    ranks = [RankSpec(**r) for r in raw.pop("ranks")]
    raw["job_dir"] = Path(raw["job_dir"])
    for name in ("log", "own", "tensorboard", "warning", "stop_note"):
        raw[name] = Path(raw[name]) if raw.get(name) else None
    return AgentSpec(ranks=ranks, **raw)
