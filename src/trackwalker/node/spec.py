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


@dataclass(frozen=True)
class AgentSpec:
    """One node's share of a job."""

    job_id: str
    job_name: str
    model: str
    node: str
    job_dir: Path
    log: Path
    ranks: list[RankSpec]
    world: int
    grace_s: float = 10.0
    tensorboard: Path | None = None  # where rank 0 writes its event files; None: tensorboard/ in the job directory
    listen: str = ""  # interface, address or network to serve metrics on; empty: loopback or a private address

    @property
    def state_file(self) -> Path:
        """Process ids and read offsets, so that a new agent can take over from a dead one."""
        return self.job_dir / "agent" / "state.json"


def load_spec(path: Path) -> AgentSpec:
    """Read a spec written by the launcher."""
    raw: dict[str, Any] = json.loads(path.read_text())
    ranks = [RankSpec(**r) for r in raw.pop("ranks")]
    raw["job_dir"], raw["log"] = Path(raw["job_dir"]), Path(raw["log"])
    raw["tensorboard"] = Path(raw["tensorboard"]) if raw.get("tensorboard") else None
    return AgentSpec(ranks=ranks, **raw)
