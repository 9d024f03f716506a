"""Which checkpoints can be restored: by what the ranks say, and by the names of the folders where they lie.

An asynchronous save is told of when it begins; its folder has its final name only when all of it was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trackwalker.job.layout import Job
from trackwalker.logs.scanning.index import LogIndex
from trackwalker.record.event_files import shared_folder

_WHOLE = re.compile(r"\d{1,9}")
_TORN = re.compile(r"(\d{1,9})\.(?:orbax-checkpoint-)?tmp\b.*")
_MOST = 10_000  # names: a folder of more is something else


@dataclass(frozen=True)
class OnDisk:
    """The steps whose folders have their final name, and those that have only an unfinished one."""

    whole: frozenset[int] = frozenset()
    torn: frozenset[int] = frozenset()

    def last(self, said: set[int], until: int | None) -> int | None:
        """The newest checkpoint that can be restored, of those up to a step."""
        kept = {s for s in self.whole if until is None or s <= until}
        # Old ones are cleaned away, the newest is not: told of and not there means that it was never finished.
        told = {s for s in said - self.torn if not self.whole or s <= max(self.whole)}
        return max(told | kept, default=None)


def on_disk(job: Job, index: LogIndex) -> OnDisk:
    """What lies in the run's checkpoint folder; nothing where there is none or it cannot be read."""
    folder = _folder(job, index)
    if folder is None:
        return OnDisk()
    try:
        names = [p.name for _, p in zip(range(_MOST), folder.iterdir(), strict=False)]
    except OSError:
        return OnDisk()
    whole = frozenset(int(n) for n in names if _WHOLE.fullmatch(n))
    torn = frozenset(int(m[1]) for n in names if (m := _TORN.fullmatch(n)))
    return OnDisk(whole, torn - whole)


def _folder(job: Job, index: LogIndex) -> Path | None:
    if job.dir is None:
        return None
    facts = index.facts
    told = shared_folder(job.dir.parent, facts.setting("checkpoint_dir"))
    beside = shared_folder(job.dir.parent, facts.setting("tensorboard_dir"))  # MaxText puts both into the run's folder
    places = [told, beside.parent / "checkpoints" if beside is not None else None, job.dir / "checkpoints"]
    places += _by_model(job.dir.parent, facts.header.get("MODEL_NAME", ""))
    return next((p for p in places if p is not None and p.is_dir()), None)


def _by_model(workspace: Path, model: str) -> list[Path]:
    """The one run of a model that lies in the workspace, for a log that ends before it tells its settings."""
    if not re.fullmatch(r"[\w.-]+", model) or model.startswith("."):
        return []
    found = sorted((workspace / model).glob("*/checkpoints"))
    return found if len(found) == 1 else []
