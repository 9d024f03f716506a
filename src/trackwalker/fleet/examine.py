"""Every finished or troubled job is diagnosed once, in the background, so that a list does not depend on who looked.

One at a time, with a time limit; whoever opens the job meanwhile waits for the same diagnosis. What came of it is kept
beside the index in the user's cache folder, never in the job directory; it holds for the state of the evidence that it
was made from.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from trackwalker import __version__
from trackwalker.agent.workspace import signature
from trackwalker.diagnose.verdict import Verdict
from trackwalker.fleet.index import JobIndex
from trackwalker.fleet.rows import JobRow
from trackwalker.fleet.store import folder_for
from trackwalker.job.layout import Job
from trackwalker.job.trust import distrust, distrust_open
from trackwalker.job.whole import open_regular, write_whole

_LARGEST = 32 << 20
_MOST = 5000  # verdicts; a pruned one costs nothing: what a list needs of it is in the index
_IDLE_S = 5.0
_LIMIT_S = 300.0
_FIRST_S = 2.0  # whoever starts a server looks at a page at once: that comes first
_AGAIN_S = 86400.0  # what nothing came of is tried again after this
_LIVE_S = 600.0  # a job that goes on is diagnosed again after this, if it still stands badly


@dataclass(frozen=True)
class _Known:
    """What was tried for a job: which evidence, when, and whether a verdict came of it."""

    state: str
    at: float
    made: bool


class Examined:
    """Verdicts that were made in the background, by job; every method may be called from any thread."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        place = folder or folder_for(root)
        self._folder = place / "verdicts" if place is not None else None
        self._known: dict[str, _Known] = {}
        self.changes = 0
        self._lock = threading.Lock()
        self._load()

    @property
    def folder(self) -> Path | None:
        """Where they are kept."""
        return self._folder

    def mark(self, job_id: str) -> str:
        """Changes with each verdict about a job; empty before the first."""
        with self._lock:
            known = self._known.get(job_id)
        return f"b{known.state}" if known is not None and known.made else ""

    def marks(self) -> dict[str, str]:
        """The marks of all jobs that have one."""
        with self._lock:
            return {name: f"b{known.state}" for name, known in self._known.items() if known.made}

    def tried(self, job_id: str) -> _Known | None:
        """The last diagnosis of a job, whatever came of it."""
        with self._lock:
            return self._known.get(job_id)

    def verdict(self, job: Job) -> Verdict | None:
        """The kept verdict, where the job's evidence is still what it was."""
        known = self.tried(job.id)
        if known is None or not known.made or self._folder is None:
            return None
        if not _goes_on(known.state) and known.state != state_of(job):
            return None
        held = self._read(self._folder / f"{job.id}.json")
        try:
            return Verdict.model_validate(held["verdict"]) if held and held["verdict"] else None
        except (ValidationError, KeyError):
            return None

    def keep(self, job_id: str, state: str, verdict: dict[str, Any] | None) -> None:
        """Write down what came of a diagnosis; none is written down, too: it is not tried again."""
        with self._lock:
            self._known[job_id] = _Known(state, time.time(), verdict is not None)
            self.changes += 1
        if self._folder is None:
            return
        held = {"version": __version__, "state": state, "at": time.time(), "verdict": verdict}
        with contextlib.suppress(OSError, TypeError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._folder / f"{job_id}.json", orjson.dumps(held), mode=0o600)

    def _load(self) -> None:
        if self._folder is None or not self._folder.is_dir() or distrust(self._folder):
            return
        files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in files[_MOST:]:
            old.unlink(missing_ok=True)
        for path in files[:_MOST]:
            held = self._read(path)
            with contextlib.suppress(TypeError, KeyError, ValueError):
                if held is not None:
                    made = held["verdict"] is not None
                    self._known[path.stem] = _Known(str(held["state"]), float(held["at"]), made)

    def _read(self, path: Path) -> dict[str, Any] | None:
        """One file of ours; anything odd about it means: diagnose again."""
        try:
            with open_regular(path) as file:
                if distrust_open(file.fileno(), path) or os.fstat(file.fileno()).st_size > _LARGEST:
                    return None
                held = orjson.loads(file.read())
        except (OSError, ValueError):
            return None
        return held if isinstance(held, dict) and held.get("version") == __version__ else None


def state_of(job: Job) -> str:
    """Changes when the evidence of a job does."""
    return sha256(repr(signature(job)).encode()).hexdigest()[:24]


def _goes_on(state: str) -> bool:
    return state.startswith("live ")


GivenUp = Callable[[], bool]


class Examiner:
    """The worker: picks the next job that nobody has diagnosed, the troubled ones first; none while others wait."""

    def __init__(
        self,
        index: JobIndex,
        examined: Examined,
        diagnose: Callable[[Job, GivenUp], Verdict],
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._index, self._examined, self._diagnose, self._busy = index, examined, diagnose, busy
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._enabled = examined.folder is not None
        self._counted: tuple[object, int] = (None, 0)  # for which state, how many wait

    def start(self) -> None:
        """Begin, in a thread of its own."""
        if self._enabled and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trackwalker-examiner", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop, with what runs."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(30.0)

    def waiting(self) -> int:
        """How many jobs are still to be diagnosed; counted anew when something changed, and by the minute."""
        if not self._enabled:
            return 0
        rows, version = self._index.rows()
        state = (version, self._examined.changes, int(time.time() / 60.0))
        if self._counted[0] != state:
            self._counted = (state, sum(self._wants(row, time.time()) for row in rows))
        return self._counted[1]

    def step(self) -> bool:
        """Diagnose the next one; whether there was one."""
        if self._busy() or (chosen := self._next()) is None:
            return False
        job, state = chosen
        until, made = time.monotonic() + _LIMIT_S, None
        with contextlib.suppress(Exception):  # it has nothing to read, takes too long, or breaks what reads it
            made = self._diagnose(job, lambda: self._over.is_set() or time.monotonic() > until)
        if not self._over.is_set():
            self._examined.keep(job.id, state, orjson.loads(made.to_json()) if made is not None else None)
            self._index.look_again()
        return True

    def _run(self) -> None:
        self._over.wait(_FIRST_S)
        while not self._over.is_set():
            done = False
            with contextlib.suppress(OSError):  # a file that vanished; the next round sees what is there
                done = self.step()
            self._over.wait(0.0 if done else _IDLE_S)

    def _next(self) -> tuple[Job, str] | None:
        now = time.time()
        wanted = [row for row in self._index.rows()[0] if self._wants(row, now)]
        for row in sorted(wanted, key=_urgency):
            job = self._index.job(row.id)
            if job is None or job.log is None:
                continue
            state = state_of(job) if row.settled else f"live {row.status} {row.badge}"
            known = self._examined.tried(row.id)
            if known is not None and known.state == state and (row.settled or now - known.at < _LIVE_S):
                continue
            return job, state
        return None

    def _wants(self, row: JobRow, now: float) -> bool:
        if row.pending or not row.readable or row.status in ("waiting", "pending"):
            return False
        if row.settled:
            known = self._examined.tried(row.id)
            if known is not None and _goes_on(known.state):
                return True  # what was concluded while it went on is not its last word
            tired = known is not None and not known.made and now - known.at < _AGAIN_S
            return row.badge_from != "verdict" and not tired
        return row.group == "trouble" or row.status == "hanging"


def _urgency(row: JobRow) -> tuple[bool, bool, float]:
    """What goes on first, then what is in trouble, then the newest."""
    return row.settled, row.group != "trouble", -row.when
