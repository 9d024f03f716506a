"""The jobs of a workspace at a glance, read in the background: a list of 200 logs must not keep a page waiting.

A log is read again when it or what lies beside it has changed. What was read is kept in the user's cache folder, so
that the next start of the server shows it at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from trackwalker import __version__
from trackwalker.diagnose.triage import triage
from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.launch.standing import standings
from trackwalker.logs.kept import folder
from trackwalker.record.accounting import ask
from trackwalker.record.read import Answer
from trackwalker.web.jobs_rows import JobRow, of_error, of_standing, of_triage, unread
from trackwalker.web.workspace import WebWorkspace

_LOOK_S = 2.0  # the workspace is listed anew after this
_AGAIN_S = 5.0  # a log that grows is read again after this, or after ten times what its reading took
_AGAIN_COST = 10.0
_BEAT_S = 60.0  # a job that runs is looked at anew after this, whatever it writes
_SAVE_S = 10.0
_LARGEST = 64 << 20
_FORM = 2  # of the kept rows: another number, and they are made anew
_MOST_FILES = 40  # workspaces; those that were looked at longest ago go first


@dataclass
class _Held:
    """What is known of a job, and of which state of its files."""

    row: JobRow
    state: Any = None
    read: float = 0.0  # monotonic time of the last reading
    cost: float = 0.0


class JobIndex:
    """Every job's row; `rows` answers at once with what is known so far."""

    def __init__(self, workspace: WebWorkspace, cache: Path | None = None) -> None:
        self._ws = workspace
        self._file = cache or _file_for(workspace.root)
        self._held: dict[str, _Held] = {}
        self._order: list[Job] = []
        self._looked = float("-inf")
        self._version = 0
        self._saved = (0, 0.0)
        self._lock = threading.RLock()
        self._looking = threading.Lock()
        self._work = threading.Event()
        self._over = threading.Event()
        self._reader: threading.Thread | None = None

    def rows(self) -> tuple[list[JobRow], int]:
        """Rows, newest first, and a number that changes when any of them does."""
        self._look()
        with self._lock:
            return [self._held[job.id].row for job in self._order], self._version

    def wait(self, seconds: float) -> bool:
        """Wait until every job has been read; for tests and benchmarks."""
        deadline = time.monotonic() + seconds
        while any(row.pending for row in self.rows()[0]):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """Stop reading, and keep what was read."""
        self._over.set()
        self._work.set()
        if self._reader is not None:
            self._reader.join(30.0)
        self._save()

    def _look(self) -> None:
        """List the workspace; cheap, and not more often than needed."""
        with self._looking:
            if time.monotonic() - self._looked < _LOOK_S:
                return
            first = self._looked == float("-inf")
            known = self._load() if first else {}
            jobs = self._ws.jobs()
            with self._lock:
                if [job.id for job in jobs] != [job.id for job in self._order]:
                    self._version += 1
                for job in jobs:
                    if job.id not in self._held:
                        self._held[job.id] = known.get(job.id) or _Held(unread(job))
                for gone in set(self._held) - {job.id for job in jobs}:
                    del self._held[gone]
                self._order = jobs
            self._looked = time.monotonic()
            if self._reader is None and not self._over.is_set():
                self._reader = threading.Thread(target=self._read_all, name="trackwalker-jobs", daemon=True)
                self._reader.start()
            self._work.set()

    def _read_all(self) -> None:
        while not self._over.is_set():
            self._work.wait()
            self._work.clear()
            # A reader that died would leave a page that never fills: whatever a job's files do, it goes on.
            with contextlib.suppress(OSError):
                self._pass()
            if time.monotonic() - self._saved[1] > _SAVE_S:
                self._save()

    def _pass(self) -> None:
        with self._lock:
            jobs = list(self._order)
        due = [(job, state) for job in jobs if (state := self._due(job)) is not None]
        waiting = [job for job, _ in due if job.log is None]
        for job, seen in zip(waiting, standings(waiting) if waiting else [], strict=True):
            self._put(job, of_standing(job, seen), (0, _state(job, unread(job))), 0.0)
        written = [(job, state) for job, state in due if job.log is not None]
        # Once for all of them: a scheduler is not to be asked a hundred times.
        answer: Answer = ask([job.id for job, _ in written]) if written else ""
        for job, state in written:
            if self._over.is_set():
                return
            began = time.monotonic()
            self._put(job, self._row(job, answer), state, time.monotonic() - began)

    def _row(self, job: Job, answer: Answer) -> JobRow:
        try:
            return of_triage(triage(job, sacct=answer), self._ws.told(job)[1] or self._ws.saved_verdict(job))
        except TrackwalkerError as e:
            return of_error(job, str(e))
        except OSError as e:
            return of_error(job, f"it cannot be read: {e.strerror}")
        except Exception as e:  # a log that breaks our reader breaks its own line, not the list
            return of_error(job, f"its log cannot be understood ({type(e).__name__}); 'trackwalker triage' says more")

    def _due(self, job: Job) -> Any:
        """The state of the job's files where it has to be read again, else None."""
        held = self._held.get(job.id)
        if held is None:
            return None
        told = self._ws.told(job)[0]
        state = (told, _state(job, held.row))
        if state == held.state:
            return None
        new = held.row.pending or (told and (held.state or (0,))[0] != told)
        fresh = new or time.monotonic() - held.read > max(_AGAIN_S, _AGAIN_COST * held.cost)
        return state if fresh else None

    def _put(self, job: Job, row: JobRow, state: Any, cost: float) -> None:
        with self._lock:
            held = self._held.get(job.id)
            if held is None:
                return  # it vanished meanwhile
            if held.row != row:
                self._version += 1
            held.row, held.state, held.read, held.cost = row, state, time.monotonic(), cost

    def _load(self) -> dict[str, _Held]:
        """What an earlier server read; anything odd about the file means: read the logs again."""
        try:
            with self._file.open("rb") as f:
                about = os.fstat(f.fileno())
                if about.st_uid != os.geteuid() or about.st_mode & 0o022 or about.st_size > _LARGEST:
                    return {}
                held = json.loads(f.read())
            if held["version"] != [__version__, _FORM]:
                return {}
            return {key: _Held(JobRow.from_dict(row), _frozen(state)) for key, (row, state) in held["jobs"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def _save(self) -> None:
        with self._lock:
            version = self._version
            if version == self._saved[0]:
                return
            jobs = {key: (h.row.to_dict(), h.state) for key, h in self._held.items() if not h.row.pending}
        self._saved = (version, time.monotonic())
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            tmp = self._file.with_suffix(f".{os.getpid()}.tmp")
            with os.fdopen(os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
                json.dump({"version": [__version__, _FORM], "jobs": jobs}, f)
            tmp.replace(self._file)
            for old in sorted(self._file.parent.glob("jobs-*.json"), key=lambda p: p.stat().st_mtime)[:-_MOST_FILES]:
                old.unlink(missing_ok=True)


def _state(job: Job, row: JobRow) -> Any:
    """Changes when the job's row may; a job that runs changes by itself, for one that hangs or died writes nothing."""
    if job.log is None:
        return int(time.time() / _AGAIN_S)
    verdict = job.dir / "verdict.json" if job.dir else None
    files = tuple(_stat(path) for path in (job.log, job.events, job.progress, verdict))
    return (*files, int(time.time() / _BEAT_S) if row.group == "running" or is_live(job.state) else None)


def _stat(path: Path | None) -> tuple[int, int] | None:
    try:
        held = path.stat() if path is not None else None
    except OSError:
        return None
    return (held.st_size, held.st_mtime_ns) if held is not None else None


def _frozen(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


def _file_for(root: Path) -> Path:
    try:
        return folder().parent / "web" / f"jobs-{sha256(str(root).encode()).hexdigest()[:24]}.json"
    except RuntimeError:  # a user without a home
        return Path(os.devnull) / "none"
