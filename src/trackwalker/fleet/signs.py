"""What the watcher of a workspace remembers, for the inbox: `.watch/journal.jsonl`, where it is ours to believe."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.job.journal import read
from trackwalker.job.trust import distrust
from trackwalker.report.text import clip, one_line
from trackwalker.watch.memory import FOLDER

_LARGEST = 64 << 20
_ORDINARY = frozenset({"ended", "requeued", "held"})  # what happened to a job, and is not wrong with it


@dataclass(frozen=True)
class Sign:
    """One condition that the watcher called."""

    job: str
    kind: str
    title: str
    since: float
    resolved: float | None
    severity: str
    says: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it goes on, as far as the watcher knows."""
        return self.resolved is None

    @property
    def is_trouble(self) -> bool:
        """Whether it is wrong with the job."""
        return self.kind not in _ORDINARY


class Signs:
    """The watcher's conditions by job; read again when its journal grew."""

    def __init__(self, root: Path) -> None:
        self._root, self._path = root, root / FOLDER / "journal.jsonl"
        self._state: tuple[int, int] | None = None
        self._found: dict[str, list[Sign]] = {}
        self.refused = ""  # why the journal is not believed
        self._lock = threading.Lock()

    @property
    def state(self) -> tuple[int, int] | None:
        """Changes when the journal does."""
        self.by_job()
        return self._state

    def by_job(self) -> Mapping[str, list[Sign]]:
        """All of them; empty without a watcher."""
        with self._lock:
            try:
                held = os.lstat(self._path)
            except OSError:
                return {}
            state = (held.st_size, held.st_mtime_ns)
            if state != self._state:
                self._state = state
                self.refused = distrust(self._path, self._root)
                too_large = held.st_size > _LARGEST
                self._found = {} if self.refused or too_large else _folded(read(self._path).items)
            return self._found


def _folded(records: list[dict[str, Any]]) -> dict[str, list[Sign]]:
    held: dict[str, dict[str, Any]] = {}
    for record in records:
        said = record.get("incident") if record.get("op") == "open" else None
        if isinstance(said, dict) and isinstance(said.get("id"), str):
            held[said["id"]] = dict(said)
        elif record.get("op") == "set" and record.get("id") in held and isinstance(record.get("set"), dict):
            held[record["id"]].update(record["set"])
    found: dict[str, list[Sign]] = {}
    for said in held.values():
        try:
            over = said.get("resolved")
            sign = Sign(
                str(said["job"]),
                clip(one_line(str(said["kind"])), 40),
                clip(one_line(str(said["title"])), 200),
                float(said["since"]),
                None if over is None else float(over),
                str(said.get("severity", "")),
                clip(one_line(str((said.get("verdict") or {}).get("summary", "") or said.get("text", ""))), 300),
            )
        except (KeyError, TypeError, ValueError, AttributeError):  # a foreign record changes nothing
            continue
        found.setdefault(sign.job, []).append(sign)
    return found
