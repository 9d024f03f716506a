"""What people decided about incidents: state, owner, note. A journal in the user's state folder, outside of every job.

It is kept and not only cached: nothing else holds it. Each decision is one line, so that who changed what stays
known, and a kill at any byte loses at most the last one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from trackwalker.agent.policy import this_person
from trackwalker.errors import UsageError
from trackwalker.job.journal import Journal, read
from trackwalker.job.private import state_home
from trackwalker.job.trust import distrust
from trackwalker.report.text import clip, one_line

State = Literal["open", "acknowledged", "resolved"]
STATES: tuple[State, ...] = get_args(State)
_LONGEST_OWNER, _LONGEST_NOTE = 80, 2000


@dataclass(frozen=True)
class Mark:
    """How an incident stands with the people; `changed` is 0 where nobody has touched it."""

    state: State = "open"
    owner: str = ""
    note: str = ""
    by: str = ""
    changed: float = 0.0


@dataclass(frozen=True)
class Change:
    """One decision."""

    t: float
    by: str
    what: str


class Marks:
    """The decisions about one workspace; every method may be called from any thread."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        place = folder or state_home() / "incidents"
        self._path = place / f"{sha256(str(root.resolve()).encode()).hexdigest()[:24]}.jsonl"
        self._lock = threading.Lock()
        self._size = -1
        self._marks: dict[str, Mark] = {}
        self._history: dict[str, list[Change]] = {}

    def of(self, incident: str) -> Mark:
        """How an incident stands."""
        with self._lock:
            self._load()
            return self._marks.get(incident, Mark())

    @property
    def state(self) -> int:
        """Changes with each decision."""
        with self._lock:
            self._load()
            return self._size

    def history(self, incident: str) -> list[Change]:
        """Who changed what, the oldest first."""
        with self._lock:
            self._load()
            return list(self._history.get(incident, []))

    def set(self, incident: str, state: str | None = None, owner: str | None = None, note: str | None = None) -> Mark:
        """Write down a decision; what is None stays as it is."""
        if state is not None and state not in STATES:
            raise UsageError(f"'{clip(one_line(state), 40)}' is no state: {', '.join(STATES)}")
        said: dict[str, str] = {}
        if state is not None:
            said["state"] = state
        if owner is not None:
            said["owner"] = clip(one_line(owner.strip()), _LONGEST_OWNER)
        if note is not None:
            said["note"] = note.strip()[:_LONGEST_NOTE]
        with self._lock:
            self._load()
            known = self._marks.get(incident, Mark())
            new = {name: value for name, value in said.items() if getattr(known, name) != value}
            if new:
                self._append({"t": time.time(), "by": this_person(), "incident": incident, "set": new})
                self._load()
            return self._marks.get(incident, Mark())

    def _append(self, record: dict[str, object]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            journal = Journal(self._path)
            with contextlib.closing(journal):
                os.chmod(self._path, 0o600)
                journal.append(record)
        except OSError as e:
            raise UsageError(f"it was not written down: {self._path}: {e.strerror}") from e

    def _load(self) -> None:
        try:
            size = os.lstat(self._path).st_size
        except OSError:
            return
        if size == self._size or distrust(self._path):
            return
        self._size, self._marks, self._history = size, {}, {}
        for record in read(self._path).items:
            said, name = record.get("set"), record.get("incident")
            if not isinstance(said, dict) or not isinstance(name, str):
                continue
            new = {key: str(said[key]) for key in ("state", "owner", "note") if key in said}
            if new.get("state", "open") not in STATES:
                continue
            at, by = record.get("t"), clip(one_line(str(record.get("by", ""))), 80)
            when = float(at) if isinstance(at, int | float) else 0.0
            known = self._marks.get(name, Mark())
            self._marks[name] = replace(known, **new, by=by, changed=when)  # type: ignore[arg-type]
            self._history.setdefault(name, []).append(Change(when, by, _words(new)))


def _words(new: dict[str, str]) -> str:
    parts = [new["state"]] if "state" in new else []
    if "owner" in new:
        parts.append(f"owner: {new['owner'] or 'nobody'}")
    if "note" in new:
        parts.append(f"note: {clip(one_line(new['note']), 200) or 'removed'}")
    return "; ".join(parts)
