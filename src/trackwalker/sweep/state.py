"""The state of a sweep: a journal of intents, submissions and results, and what follows from it.

An intent is on disk before its job is asked for, with the tag that the job's name will carry. So whoever comes after a
crash knows every job there can be, and looks for it instead of starting another.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trackwalker.errors import EvidenceError, RefusedError
from trackwalker.job.journal import read
from trackwalker.sweep.model import Result, Trial
from trackwalker.watch.memory import DurableJournal

NAME = "state.jsonl"
STOPPED = "stopped"  # begins the reason why a trial that we ended ourselves is repeated when the sweep goes on
_LOCK = "lock"
_ORDER = "cancel"  # a file by which somebody else tells the engine to end the sweep


@dataclass
class Run:
    """One attempt of one trial."""

    tag: str
    trial: Trial  # as it was submitted: a spare may stand in for a faulty node
    attempt: int
    intended: float
    host: str  # where it was submitted from
    job: str = ""
    submitted: float | None = None
    started: float | None = None  # seen running for the first time
    stalled: dict[str, str] = field(default_factory=dict)  # it does not move and was told to end: phase, why, hosts
    result: Result | None = None
    again: str = ""  # why the trial is repeated, so that this result does not count
    void: str = ""  # why there never was a job

    @property
    def open(self) -> bool:
        """Whether its job may exist and has not been judged."""
        return self.result is None and not self.void


@dataclass
class State:
    """Everything the journal says."""

    runs: dict[str, Run] = field(default_factory=dict)  # by tag, in the order of their intents
    replaced: dict[str, str] = field(default_factory=dict)  # faulty node -> the spare in its place, or nobody
    budget: float | None = None  # another one than the plan's
    must_stop: str = ""  # a result after which nothing more may be submitted
    stop: str = ""  # why the sweep ended before its question was answered
    ended: float | None = None

    @property
    def done(self) -> dict[str, Result]:
        """The results that count, by trial."""
        return {run.trial.key: run.result for run in self.runs.values() if run.result is not None and not run.again}

    @property
    def open_runs(self) -> list[Run]:
        """Attempts whose jobs may be queued or running."""
        return [run for run in self.runs.values() if run.open]

    def tries(self, key: str) -> list[Run]:
        """The attempts of a trial that came to a result."""
        own = [run for run in self.runs.values() if run.trial.key == key and run.result is not None]
        return [run for run in own if not run.again.startswith(STOPPED)]

    def take(self, record: Mapping[str, Any]) -> None:
        """Take in one record."""
        kind = record["kind"]
        if kind == "intent":
            trial = trial_of(record["trial"])
            tag = str(record["tag"])
            self.runs[tag] = Run(tag, trial, int(record["attempt"]), float(record["t"]), str(record["host"]))
        elif kind == "replaced":
            self.replaced[str(record["node"])] = str(record["by"])
        elif kind == "end":
            self.stop, self.ended = str(record["stop"]), float(record["t"])
        elif kind == "budget":
            self.budget = float(record["node_hours"])
        elif kind == "resumed":
            self.stop, self.must_stop, self.ended = "", "", None
        else:
            self._of_run(kind, self.runs[str(record["tag"])], record)

    def _of_run(self, kind: str, run: Run, record: Mapping[str, Any]) -> None:
        if kind == "submitted":
            run.job, run.submitted = str(record["job"]), float(record["t"])
        elif kind == "started":
            run.started = float(record["t"])
        elif kind == "void":
            run.void = str(record["why"])
        elif kind == "stalled":
            run.stalled = {name: str(record[name]) for name in ("phase", "why", "hosts")}
        elif kind == "result":
            run.result, run.again = result_of(record["result"]), str(record["again"])
            self.must_stop = str(record["stop"]) or self.must_stop
        else:
            raise ValueError(f"unknown record '{kind}'")


def load_state(folder: Path) -> State:
    """What the journal of a sweep says; one that has lost records is one clear error, since a job might run twice."""
    path = folder / NAME
    found = read(path)
    # An unfinished last line was never acted on: its writer died in the middle of it, or is writing.
    if found.damaged > int(found.torn_tail):
        raise EvidenceError(
            f"{path} is damaged: {found.damaged} lines cannot be read, so a job could be run twice; restore the file, "
            "or start a new sweep"
        )
    state = State()
    for number, record in enumerate(found.items, 1):
        try:
            state.take(record)
        except (KeyError, TypeError, ValueError) as e:
            raise EvidenceError(f"{path} is damaged: record {number} makes no sense ({type(e).__name__}: {e})") from e
    return state


class Book:
    """The journal of a sweep while its engine runs; there is one engine at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = _locked(folder)
        _cut_torn_tail(folder / NAME)
        self.state = load_state(folder)
        self._journal = DurableJournal(folder / NAME)
        self._order = folder / _ORDER

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()
        os.close(self._lock)

    def write(self, kind: str, t: float, **values: Any) -> None:
        """Write a record to disk, then take it in."""
        record = {"kind": kind, "t": t, **values}
        self._journal.append(record)
        self.state.take(record)

    def intend(self, tag: str, trial: Trial, attempt: int, now: float) -> Run:
        """Write down that a job is about to be asked for."""
        self.write("intent", now, tag=tag, trial=asdict(trial), attempt=attempt, host=socket.gethostname())
        return self.state.runs[tag]

    @property
    def told_to_cancel(self) -> bool:
        """Whether somebody asked for the end of the sweep."""
        return self._order.exists()

    def forget_order(self) -> None:
        """The order is carried out, or an older one must not end a resumed sweep."""
        self._order.unlink(missing_ok=True)


def order_cancel(folder: Path) -> None:
    """Tell the engine of a sweep, wherever it runs, to end its jobs and itself."""
    (folder / _ORDER).touch()


def running(folder: Path) -> str:
    """Who runs the sweep now, as `pid N on HOST`; empty when nobody does."""
    try:
        fd = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:
        return ""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return os.pread(fd, 200, 0).decode("utf-8", "replace").strip() or "another process"
    finally:
        os.close(fd)
    return ""


def trial_of(said: Mapping[str, Any]) -> Trial:
    """A trial from the journal."""
    return Trial(**{**_known(Trial, said), "nodes": tuple(said["nodes"])})


def result_of(said: Mapping[str, Any]) -> Result:
    """A result from the journal."""
    return Result(**{**_known(Result, said), "hosts": tuple(said.get("hosts", ()))})


def _known(kind: type[Trial | Result], said: Mapping[str, Any]) -> dict[str, Any]:
    """What a newer version added is left out."""
    return {f.name: said[f.name] for f in fields(kind) if f.name in said}


def _locked(folder: Path) -> int:
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        who = running(folder)
        raise RefusedError(
            f"sweep {folder.name} is being run already ({who}): wait, or trackwalker sweep cancel {folder.name}"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return fd


def _cut_torn_tail(path: Path) -> None:
    """Without its newline a record was never acted on; left there, it would look like damage later."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    if raw and not raw.endswith(b"\n"):
        try:
            json.loads(raw[raw.rfind(b"\n") + 1 :])
        except ValueError:
            with path.open("r+b") as f:
                f.truncate(raw.rfind(b"\n") + 1)
                os.fsync(f.fileno())
