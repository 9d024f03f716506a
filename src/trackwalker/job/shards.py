"""A recording in parts: how many recorders a run has, which nodes each one scrapes, where its part lies.

Standard library only: the launcher, the nodes, the recorders and the readers all go by this one file.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path

DATABASE = "prometheus"  # in the job directory
# Nodes of one recorder. What bounds it is the way back: a Prometheus that was killed makes its series anew and replays
# its log before it scrapes again, and with 64 nodes (74,000 series) that stays within the 15 s that may be lost. It
# also keeps a recorder, which runs beside ranks, below a tenth of a core and half a gigabyte.
NODES = 64
SCRAPE_S = 1  # of a run that one recorder holds
# Of a larger one. What is compared over hours and thousands of hosts needs no seconds, and the diagnosis reads a tenth.
MANY_SCRAPE_S = 10
_PART = re.compile(r"^shard-\d{3,}$")
_SERVICE = re.compile(r"^recorder-(\d+)$")


def shards(nodes: int) -> int:
    """How many recorders a run of so many nodes has."""
    return max(1, -(-nodes // NODES))


@dataclass(frozen=True)
class Shard:
    """One recorder's part: the number `number` of `of`."""

    number: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From `3/20`, as the recorder is told; ValueError for anything else."""
        number, _, of = text.partition("/")
        shard = cls(int(number), int(of))
        if not 0 <= shard.number < shard.of:
            raise ValueError(f"{text} is no part of a whole")
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.of == 1

    @property
    def scrape_s(self) -> int:
        """Seconds between two scrapes of a node."""
        return SCRAPE_S if self.alone else MANY_SCRAPE_S

    def database(self, job_dir: Path) -> Path:
        """Where its samples lie in the job directory."""
        whole = job_dir / DATABASE
        return whole if self.alone else whole / f"shard-{self.number:03d}"

    def has(self, node: str) -> bool:
        """Whether a node is its to scrape: by the name alone, so that every recorder knows without asking another."""
        return self.alone or zlib.crc32(node.encode()) % self.of == self.number


def databases(folder: Path) -> list[Path]:
    """The databases that a recording consists of: the folder itself, or one for each recorder."""
    try:
        parts = sorted(entry for entry in folder.iterdir() if _PART.match(entry.name) and entry.is_dir())
    except OSError:
        return [folder]
    # A run that was recorded by one and then by many has both.
    own = [folder] if not parts or (folder / "wal").is_dir() else []
    return [*own, *parts]


def recorders(command: list[str], nodes: int) -> dict[str, list[str]]:
    """The services that record a run: `recorder` on the first node, and `recorder-3` and so on on others."""
    count = shards(nodes)
    if count == 1:
        return {"recorder": command}
    return {
        f"recorder-{n}" if n else "recorder": [*command, "--shard", str(Shard(n, count))] for n in range(count)
    }  # fmt: skip


def node_of(service: str, nodes: int) -> int:
    """The node on which a service runs: recorders are spread out, so that no node carries them all."""
    match = _SERVICE.match(service)
    return int(match[1]) * nodes // shards(nodes) if match else 0
