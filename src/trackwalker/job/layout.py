"""Where things are in a job directory (upstream's layout, plus ours)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# Slurm number, local_<date>_<time>_<hex>, k8s-<date>-<time>-<hex>: the three forms a job id has.
_ID = r"(?:k8s-\d+-\d+-[0-9a-f]+|local_\d+_\d+_[0-9a-f]+|\d+)"
ID_FORM = re.compile(rf"^{_ID}$")
NAME_FORM = re.compile(rf"^(?P<id>{_ID})-(?P<name>.+)$")
LOG_SUFFIXES = (".log", ".out")


@dataclass(frozen=True)
class Job:
    """One job: its id, its log and, where there is one, its directory."""

    id: str
    log: Path | None
    dir: Path | None
    more: tuple[Path, ...] = ()  # further files that tell of it: other ranks' logs, kernel logs, events, dumps
    metrics: Path | None = None  # a database that is not the job's own: borrowed from the cluster's store
    record: Path | None = None  # its run.json, where it has none of its own

    @property
    def name(self) -> str:
        """The name behind the id, such as JAX-llama2-70b."""
        stem = self.dir.name if self.dir else (self.log.stem if self.log else self.id)
        match = NAME_FORM.match(stem)
        return match["name"] if match else stem

    @property
    def label(self) -> str:
        """A short way to say which job: the directory's or the log's name."""
        return self.dir.name if self.dir else (self.log.name if self.log else self.id)

    @property
    def run_json(self) -> Path | None:
        """The resolved run as it was launched; only our own jobs have one."""
        return self.record or self._inside("run.json")

    @property
    def events(self) -> Path | None:
        """What happened: stages, starts, exits, signals."""
        return self._inside("events.jsonl")

    @property
    def progress(self) -> Path | None:
        """What each rank completed, with times."""
        return self._inside("progress.jsonl")

    @property
    def database(self) -> Path | None:
        """The Prometheus database, if the job was recorded."""
        path = self.metrics or self._inside("prometheus")
        return path if path and path.is_dir() else None

    @property
    def state(self) -> Path | None:
        """Process ids of the agent and the ranks while they run."""
        return self._inside("agent/state.json")

    def _inside(self, name: str) -> Path | None:
        return self.dir / name if self.dir else None
