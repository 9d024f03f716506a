"""Open metric databases: one private Prometheus for a job, a few at most, closed when nobody has asked for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trackwalker.agent.workspace import listing
from trackwalker.errors import EvidenceError
from trackwalker.telemetry.client import Telemetry
from trackwalker.telemetry.store import open_database

MOST = 3
IDLE_S = 180.0
_FRESH_S = 30.0  # a database that grows is opened anew after this
_WAIT_S = 120.0  # for another job's database to be let go


@dataclass
class _Entry:
    """A database that is open, or about to be."""

    state: object  # its files when it was opened
    since: float
    holder: AbstractContextManager[Telemetry] | None = None
    opening: threading.Lock = field(default_factory=threading.Lock)
    telemetry: Telemetry | None = None
    users: int = 0
    used: float = 0.0
    stale: bool = False  # to be closed by its last user


class Databases:
    """A small pool; a database in use is never closed."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._entries: dict[Path, _Entry] = {}
        self._changed = threading.Condition()

    @contextmanager
    def open(self, path: Path) -> Iterator[Telemetry]:
        """The database's metrics; a second asker shares the first one's Prometheus."""
        entry = self._borrow(path)
        try:
            with entry.opening:
                if entry.telemetry is None:
                    entry.holder = open_database(path)
                    entry.telemetry = entry.holder.__enter__()
            yield entry.telemetry.fresh()  # what one asker asked must not pile up for as long as it is open
        except BaseException:
            if entry.telemetry is None:  # it did not open: the next asker tries again
                with self._changed:
                    self._forget(path, entry)
            raise
        finally:
            self._give_back(path, entry)

    def close_idle(self, idle_s: float = IDLE_S) -> None:
        """Close what nobody has used for a while."""
        with self._changed:
            now = time.monotonic()
            idle = [p for p, e in self._entries.items() if not e.users and now - e.used >= idle_s]
            gone = [self._entries.pop(path) for path in idle]
            self._changed.notify_all()
        for entry in gone:
            _end(entry)

    def close(self) -> None:
        """Close all that is not in use; what is in use is closed by its last user."""
        with self._changed:
            for entry in self._entries.values():
                entry.stale = True
        self.close_idle(0.0)

    def __len__(self) -> int:
        return len(self._entries)

    def _borrow(self, path: Path) -> _Entry:
        deadline = time.monotonic() + _WAIT_S
        state = listing(path)
        gone: list[_Entry] = []  # closed once nobody has to wait for it
        with self._changed:
            while True:
                now = time.monotonic()
                entry = self._entries.get(path)
                if entry is not None and entry.state != state and now - entry.since > _FRESH_S and not entry.users:
                    gone.append(self._entries.pop(path))
                    entry = None
                if entry is None and self._has_room(gone):
                    entry = self._entries[path] = _Entry(state, now)
                if entry is not None:
                    entry.users += 1
                    break
                if now > deadline:
                    raise EvidenceError("too many jobs are open at once: close a page of another job and try again")
                self._changed.wait(deadline - now)
        for old in gone:
            _end(old)
        return entry

    def _has_room(self, gone: list[_Entry]) -> bool:
        """Whether one more may be opened, where needed in place of the one that was not used for the longest time."""
        if len(self._entries) >= self._most:
            free = sorted((e.used, p) for p, e in self._entries.items() if not e.users)
            if not free:
                return False
            gone.append(self._entries.pop(free[0][1]))
        return True

    def _give_back(self, path: Path, entry: _Entry) -> None:
        with self._changed:
            entry.users -= 1
            entry.used = time.monotonic()
            over = entry.stale and not entry.users
            if over:
                self._forget(path, entry)
            self._changed.notify_all()
        if over:
            _end(entry)

    def _forget(self, path: Path, entry: _Entry) -> None:
        if self._entries.get(path) is entry:
            del self._entries[path]


def _end(entry: _Entry) -> None:
    if entry.telemetry is not None and entry.holder is not None:
        entry.telemetry = None
        entry.holder.__exit__(None, None, None)
