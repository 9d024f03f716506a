"""The jobs of a workspace at a glance, read in the background: a list of logs must not keep a page waiting.

A log is read again when it or what lies beside it has changed. What was read is kept in the user's cache folder, so
that the next start, of the server or of a command, knows it at once; whatever is kept can be made again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Verdict
from trackwalker.errors import MissingToolError
from trackwalker.fleet.reading import read_rows, triaged
from trackwalker.fleet.rows import JobRow, of_standing, unread
from trackwalker.fleet.scan import Seen, Spared, resolved, scan
from trackwalker.fleet.store import Kept, Store, folder_for
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.launch.job_state import standings
from trackwalker.record.read import Answer

_log = logging.getLogger("trackwalker.fleet")
_LOOK_S = 2.0  # the workspace is listed anew after this, or after ten times what listing it took
_AGAIN_S = 5.0  # a log that grows is read again after this, or after ten times what its reading took
_AGAIN_COST = 10.0
_BEAT_S = 60.0  # a job that runs is looked at anew after this, whatever it writes
_OLD_S = 86400.0
_SAVE_S = 10.0
_NO_LOG = "no log"


Progress = Callable[[int, int], None]  # how many of how many were read


def _silent(done: int, of: int) -> None:
    pass


class Source(Protocol):
    """Where jobs come from, and what was concluded about them so far."""

    @property
    def root(self) -> Path:
        """The workspace."""
        ...

    def inside(self, path: Path) -> bool:
        """Whether a path lies in it once every link is followed."""
        ...

    def marks(self) -> Mapping[str, str]:
        """By job, what changes when something was concluded about it outside of its directory; most have nothing."""
        ...

    def verdict(self, job: Job) -> Verdict | None:
        """The latest verdict about a job."""
        ...


@dataclass(slots=True)
class _Held:
    """What is known of a job, and of which state of its files; paths are text, as a hundred thousand are held."""

    row: JobRow
    log: str  # below the workspace, or elsewhere
    folder: str
    mark: str = ""  # of its names in the workspace
    state: str = ""
    read: float = 0.0  # monotonic time of the last reading
    cost: float = 0.0
    saved: bool = False

    def job(self, root: Path) -> Job:
        """The job itself."""
        return Job(self.row.id, root / self.log if self.log else None, root / self.folder if self.folder else None)

    @property
    def calm(self) -> bool:
        """Whether its names in the workspace tell of every change: it is over, and its log lies there."""
        return bool(self.log) and "/" not in self.log and self.row.settled


def open_store(root: Path, folder: Path | None = None) -> Store | None:
    """The rows that are kept of a workspace; None where they cannot be: then they are read anew with each start."""
    place = folder or folder_for(root)
    try:
        return Store(place) if place is not None else None
    except MissingToolError:
        return None


class JobIndex:
    """Every job's row; `rows` answers at once with what is known so far."""

    def __init__(
        self, source: Source, folder: Path | None = None, how: Callable[[Job, Answer], Triage] = triaged
    ) -> None:
        self._source, self._how = source, how
        self.store = open_store(source.root, folder)
        self._held: dict[str, _Held] = {}
        self._gone: set[str] = set()  # since the last save
        self._spared = Spared()
        self._order: list[JobRow] | None = None  # as long as no row changes
        self._looked, self._look_cost = float("-inf"), 0.0
        self._version = 0
        self._saved = (0, 0.0)
        self._lock = threading.RLock()
        self._looking = threading.Lock()
        self._work, self._over = threading.Event(), threading.Event()
        self._reader: threading.Thread | None = None

    def rows(self) -> tuple[list[JobRow], int]:
        """Rows, newest first, and a number that changes when any of them does; the list is everybody's."""
        self._look()
        with self._lock:
            if self._order is None:
                self._order = sorted((held.row for held in self._held.values()), key=_newest, reverse=True)
            return self._order, self._version

    def row(self, job: str) -> JobRow | None:
        """One job's row."""
        with self._lock:
            held = self._held.get(job)
            return held.row if held is not None else None

    def job(self, name: str) -> Job | None:
        """A job by its whole id."""
        with self._lock:
            held = self._held.get(name)
            return held.job(self._source.root) if held is not None else None

    def jobs(self) -> list[Job]:
        """Every job, in the order of the rows."""
        rows = self.rows()[0]
        with self._lock:
            return [self._held[row.id].job(self._source.root) for row in rows if row.id in self._held]

    def wait(self, seconds: float) -> bool:
        """Wait until every job has been read, or none was for so long; for tests and benchmarks."""
        left, deadline = -1, 0.0
        while pending := sum(row.pending for row in self.rows()[0]):
            now = time.monotonic()
            if pending != left:  # however busy the machine is: what goes on is waited for
                left, deadline = pending, now + seconds
            if now > deadline:
                return False
            time.sleep(0.05)
        return True

    def saved(self) -> Store | None:
        """The store with everything that was read so far, for questions about all jobs."""
        self._save()
        return self.store

    def look_again(self) -> None:
        """List the workspace with the next question, however short ago it was listed."""
        self._looked = float("-inf") if self._looked == float("-inf") else 0.0

    def close(self) -> None:
        """Stop reading, and keep what was read."""
        self._over.set()
        self._work.set()
        if self._reader is not None:
            self._reader.join(30.0)
        self._save()

    def refresh(self, on_read: Progress = _silent, every: bool = True) -> int:
        """Read whatever changed, here and now; how many jobs that were. For commands, which have no background.

        Without `every`, of jobs that ended more than a day ago a part is looked at: what a server does with each look.
        """
        self._list(every)
        due = self._all_due(at_once=True)
        self._read(due, on_read)
        self._save()
        return len(due)

    def _look(self) -> None:
        """List the workspace; cheap, and not more often than needed."""
        with self._looking:
            if time.monotonic() - self._looked < max(_LOOK_S, _AGAIN_COST * self._look_cost):
                return
            self._list()
            if self._reader is None and not self._over.is_set():
                self._reader = threading.Thread(target=self._read_all, name="trackwalker-jobs", daemon=True)
                self._reader.start()
            self._work.set()

    def _list(self, every: bool = False) -> None:
        began = time.monotonic()
        if self._looked == float("-inf"):
            self._load()
        with self._lock:
            self._spare()
        seen = scan(self._source.root, None if every else self._spared)
        with self._lock:
            new = [name for name, each in seen.items() if name not in self._held or self._held[name].mark != each.mark]
        fresh = {name: job for name, job in resolved(self._source.root, seen, new).items() if self._is_inside(job)}
        with self._lock:
            self._take(seen, new, fresh, every)
        self._looked = time.monotonic()
        self._look_cost = self._looked - began

    def _spare(self) -> None:
        """Note which jobs need not be looked at each time: those that were over a day ago, as far as is known."""
        if self._spared.turn or not self._held:
            return
        before = time.time() - _OLD_S
        self._spared.names = {
            part: name
            for name, held in self._held.items()
            if held.calm and (held.row.changed or before) < before
            for part in (held.log, held.folder)
            if part
        }

    def _take(self, seen: dict[str, Seen], new: Iterable[str], fresh: dict[str, Job], every: bool) -> None:
        for name in new:
            job, held = fresh.get(name), self._held.get(name)
            if job is None:
                continue
            if held is None:
                self._held[name] = _Held(unread(job), *self._places(job), seen[name].mark)
                self._changed()
            else:
                held.mark = seen[name].mark
                held.log, held.folder = self._places(job)
        there: Iterable[str] = () if every else self._spared.names.values()
        lost = self._held.keys() - seen.keys() - set(there)
        lost |= {name for name in new if name not in fresh and name in self._held}
        for name in lost:
            del self._held[name]
            self._gone.add(name)
            self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._order = None

    def _is_inside(self, job: Job) -> bool:
        parts = (job.dir, job.log, job.run_json, job.events, job.state)
        return all(self._source.inside(path) for path in parts if path is not None)

    def _read_all(self) -> None:
        while not self._over.is_set():
            self._work.wait()
            self._work.clear()
            # A reader that died would leave a page that never fills: whatever a job's files do, it goes on.
            try:
                self._pass()
            except Exception:
                _log.exception("the jobs could not be read")
            if time.monotonic() - self._saved[1] > _SAVE_S:
                self._save()

    def _pass(self) -> None:
        self._read(self._all_due())

    def _all_due(self, at_once: bool = False) -> list[tuple[Job, str]]:
        """What has to be read again; of nearly all jobs a comparison of two texts tells that they need not."""
        marks, root = self._source.marks(), self._source.root
        with self._lock:
            doubtful = [
                held
                for name, held in self._held.items()
                if held.state != f"{held.mark}|{marks.get(name, '')}" or not held.calm
            ]
        jobs = [held.job(root) for held in doubtful]
        return [(job, state) for job in jobs if (state := self._due(job, marks, at_once)) is not None]

    def _places(self, job: Job) -> tuple[str, str]:
        """Log and directory as text, below the workspace where they are."""
        return _below(job.log, self._source.root), _below(job.dir, self._source.root)

    def _read(self, due: list[tuple[Job, str]], on_read: Progress = _silent) -> None:
        waiting = [job for job, _ in due if job.log is None]
        for job, seen in zip(waiting, standings(waiting) if waiting else [], strict=True):
            self._put(job, of_standing(job, seen), self._state(job, unread(job), self._source.marks()), 0.0)
        written = sorted(((j, s) for j, s in due if j.log is not None), key=lambda each: each[0].id, reverse=True)
        states = {job.id: state for job, state in written}
        todo = ((job, self._source.verdict(job)) for job, _ in written)
        for done, (job, row, cost) in enumerate(read_rows(todo, len(written), self._over, self._how)):
            self._put(job, row, states[job.id], cost)
            on_read(done + 1, len(written))

    def _due(self, job: Job, marks: Mapping[str, str], at_once: bool = False) -> str | None:
        """The state of the job's files where it has to be read again, else None."""
        held = self._held.get(job.id)
        if held is None:
            return None
        state = self._state(job, held.row, marks)
        if state == held.state:
            return None
        new = at_once or held.row.pending or state.rpartition("|")[2] != held.state.rpartition("|")[2]
        fresh = new or time.monotonic() - held.read > max(_AGAIN_S, _AGAIN_COST * held.cost)
        return state if fresh else None

    def _state(self, job: Job, row: JobRow, marks: Mapping[str, str]) -> str:
        """Changes when the job's row may; a job that runs changes by itself: one that hangs or died writes nothing.

        Of one that is over, the log and the directory tell (`scan`): a hundred thousand of them are not opened.
        """
        told = marks.get(job.id, "")
        if job.log is None:
            return f"{_NO_LOG} {int(time.time() / _AGAIN_S)}|{told}"
        held = self._held.get(job.id)
        parts = [held.mark if held is not None else ""]
        if not row.settled or job.log.parent != self._source.root:
            parts += [stamp(path) for path in (job.log, job.events, job.progress)]
        if not row.settled and (row.group == "running" or is_live(job.state)):
            parts.append(str(int(time.time() / _BEAT_S)))
        return f"{' '.join(parts)}|{told}"

    def _put(self, job: Job, row: JobRow, state: str, cost: float) -> None:
        with self._lock:
            held = self._held.get(job.id)
            if held is None:
                return  # it vanished meanwhile
            if held.row != row:
                self._changed()
            held.row, held.read, held.cost, held.saved = row, time.monotonic(), cost, False
            # What counts as its state depends on how it stands: it is the new row's that is compared next.
            held.state = self._state(job, row, self._source.marks()) if row.settled else state

    def _load(self) -> None:
        """What was read before; a row whose files changed since is due by its state."""
        for kept in self.store.rows() if self.store is not None else []:
            mark = kept.state.partition("|")[0].partition(" ")[0]
            held = _Held(kept.row, kept.log, kept.folder, mark, kept.state, float("-inf"), saved=True)
            self._held[kept.row.id] = held
        self._order = None

    def _save(self) -> None:
        if self.store is None:
            return
        with self._lock:
            new = [held for held in self._held.values() if not held.saved and not held.row.pending]
            gone = self._gone
            rows = [*map(self._kept, new), *(Kept(JobRow(name, ""), "", gone=True) for name in gone)]
            self._gone = set()
            for held in new:
                held.saved = True
        self._saved = (self._version, time.monotonic())
        with contextlib.suppress(OSError):
            self.store.put(row for row in rows if row is not None)

    def _kept(self, held: _Held) -> Kept | None:
        try:
            f"{held.log}{held.folder}".encode()
        except UnicodeEncodeError:  # a name that no text holds: read anew each time
            return None
        # What could not be read is tried again with the next start: it may have been this process that was ended.
        return Kept(held.row, held.state if held.row.readable else "", held.log, held.folder)


def _newest(row: JobRow) -> tuple[float, str]:
    return row.when, row.id


def _below(path: Path | None, root: Path) -> str:
    if path is None:
        return ""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def stamp(path: Path | None) -> str:
    """Size and time of a file: changes when it does."""
    try:
        held = os.stat(path) if path is not None else None
    except OSError:
        return "-"
    return f"{held.st_size}.{held.st_mtime_ns}" if held is not None else "-"
