"""One workspace as an agent sees it: its jobs by name, nothing outside of it, and what was opened once kept open."""

from __future__ import annotations

import difflib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from trackwalker.diagnose.case import Case, open_case
from trackwalker.diagnose.compare import compare as comparing
from trackwalker.diagnose.compare.compare import Comparison
from trackwalker.diagnose.engine import diagnose as diagnose_job
from trackwalker.diagnose.saved import saved_verdict, standing_diagnosis
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.errors import EvidenceError, JobNotFoundError, RefusedError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import follow
from trackwalker.job.scrub import Scrubber, scrubber_of
from trackwalker.job.shards import databases
from trackwalker.launch.job_state import submitted
from trackwalker.logs.formats.workers import earlier_parts
from trackwalker.report.text import one_line
from trackwalker.telemetry.client import Telemetry
from trackwalker.telemetry.store import open_database

# What the readers open in a job directory. Other entries (checkpoints) may be links to wherever they like.
_READ = frozenset({"log", "run.json", "events.jsonl", "progress.jsonl", "provenance.json", "artifact"})
_FOLDERS = (
    *("ranks", "ray_logs", "prometheus", "metrics_exporter", "tensorboard", "stacks", "agent"),
    *("profile", "profiles", "xla_dump", "xla_dumps"),
)
_MOST_ENTRIES = 500_000
_KEPT = 16  # verdicts
_FRESH_S = 30.0  # a database that grows is opened anew after this
_LONGEST_NAME = 255

T = TypeVar("T")
Signature = tuple[tuple[str, int, int], ...]


class Workspace:
    """The folder that holds the jobs; every path a tool opens lies inside it, links followed."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UsageError(f"no workspace at {root}: give --workspace, or set JOB_WORKSPACE")
        self.root = root.resolve()
        self._verdicts: dict[tuple[object, ...], Diagnosis] = {}
        self._comparisons: dict[tuple[object, ...], Comparison] = {}
        self._scrubbers: dict[str, Scrubber] = {}
        self._opened: tuple[Path, Signature, float, Telemetry] | None = None
        self._stack = ExitStack()
        self._lock = threading.RLock()  # one Prometheus and one diagnosis at a time: agents ask in parallel

    def jobs(self) -> tuple[list[Job], int]:
        """Every job, newest first, and how many were left out because they lie outside."""
        found = submitted(self.root)
        inside = [
            job
            for job in found
            if all(self.inside(p) for p in (job.dir, job.log, job.run_json, job.events, job.state) if p is not None)
        ]
        return inside, len(found) - len(inside)

    def job(self, name: str) -> Job:
        """The one job that an id, the beginning of one, or a job's whole name means; never a path."""
        shown = one_line(name)[:80]
        if not name or len(name) > _LONGEST_NAME or "/" in name or "\\" in name or name.startswith((".", "~")):
            raise RefusedError(f"'{shown}' is a path, and jobs are named by id: list_jobs gives the ids")
        jobs, _ = self.jobs()
        exact = [job for job in jobs if name in (job.id, job.label)]
        found = exact[:1] or [job for job in jobs if job.id.startswith(name) or job.label.startswith(name)]
        if not found:
            near = difflib.get_close_matches(name, [job.id for job in jobs], n=1)
            hint = f"did you mean {near[0]}?" if near else "list_jobs gives the ids"
            raise JobNotFoundError(f"no job '{shown}' in this workspace; {hint}")
        if len(found) > 1:
            raise JobNotFoundError(f"'{shown}' could be {len(found)} jobs, such as {found[0].id} and {found[1].id}")
        self._check(found[0])
        return found[0]

    def own_job(self, name: str) -> Job:
        """The job for an action: named by its whole id, with a directory that belongs to this user."""
        job = self.job(name)
        if name not in (job.id, job.label):
            raise RefusedError(f"'{one_line(name)[:80]}' is not the whole id: did you mean job {job.id}?")
        if job.dir is None or not owned(job):
            raise RefusedError(f"job {job.id} is not yours: its directory belongs to another user, or there is none")
        return job

    def inside(self, path: Path) -> bool:
        """Whether a path lies in the workspace once every link is followed."""
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):  # a link that leads to itself
            return False

    def file(self, folder: Path, name: str) -> Path:
        """A file below a folder of the workspace, by its relative name."""
        if not name or "\0" in name or name.startswith(("/", "~")) or ".." in Path(name).parts:
            raise RefusedError(f"'{one_line(name)[:80]}' leaves its folder: give a name as it was listed")
        path = folder / name
        if not self.inside(path) or not path.resolve().is_relative_to(folder.resolve()):
            raise RefusedError(f"'{one_line(name)[:80]}' is a link that leaves its folder: not read")
        if not path.is_file():
            raise EvidenceError(f"no file '{one_line(name)[:80]}'")
        return path

    def verdict(self, job: Job) -> Diagnosis:
        """The diagnosis; made once as long as the evidence stays as it is."""
        key = (job.id, *signature(job))
        with self._lock:
            made = _remembered(self._verdicts, key, lambda: diagnose_job(job))
        return standing_diagnosis(made, saved_verdict(job, self.inside))

    def comparison(self, a: Job, b: Job) -> Comparison:
        """The comparison of two jobs; made once as long as their evidence stays as it is."""
        key = (a.id, b.id, *signature(a), *signature(b))
        with self._lock:
            return _remembered(self._comparisons, key, lambda: comparing.compare(a, b))

    @contextmanager
    def metrics(self, job: Job) -> Iterator[Telemetry]:
        """The job's metrics behind a private Prometheus, which stays open for the next question to the same job."""
        if job.database is None:
            raise EvidenceError(f"job {job.id} was not recorded: it has no metrics")
        with self._lock:
            now = listing(job.database)
            opened = self._opened
            stale = opened is not None and opened[1] != now and time.monotonic() - opened[2] > _FRESH_S
            if opened is None or opened[0] != job.database or stale:
                self.close()
                telemetry = self._stack.enter_context(open_database(job.database))
                opened = self._opened = (job.database, now, time.monotonic(), telemetry)
            yield opened[3]

    @contextmanager
    def case(self, job: Job) -> Iterator[Case]:
        """A job's evidence, opened; its metrics behind the Prometheus that is open already."""
        with self._lock, ExitStack() as stack:
            held = stack.enter_context(self.metrics(job)) if job.database is not None else None
            opener = None if held is None else (lambda _: nullcontext(held.fresh()))
            yield stack.enter_context(open_case(job, opener))

    def scrubber(self, job: Job | None = None) -> Scrubber:
        """Knows the secrets of this process and those that a job's log printed at its head."""
        with self._lock:
            name = job.id if job is not None else ""
            if name not in self._scrubbers:
                self._scrubbers[name] = scrubber_of(job.log if job is not None else None)
            return self._scrubbers[name]

    def close(self) -> None:
        """Close what is open; the workspace can be used again."""
        with self._lock:
            self._opened = None
            self._stack.close()

    def _check(self, job: Job) -> None:
        """Refuse a job that has links out of the workspace where the readers would follow them."""
        if job.log is not None:
            for part in earlier_parts(job.log):
                self._refuse_outside(part)
        if job.dir is None:
            return
        for path in (*(job.dir / name for name in (*_READ, *_FOLDERS)), *job.dir.glob("rank-*.log")):
            self._refuse_outside(path)
        artifact = follow(job.dir / "artifact")  # may be a text file that holds a path
        if artifact is not None and artifact.exists() and not self.inside(artifact):
            raise RefusedError("artifact of the job leads out of the workspace: not read")
        seen = 0
        todo = [str(job.dir / name) for name in _FOLDERS if (job.dir / name).is_dir()]
        while todo:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_symlink():
                        self._refuse_outside(Path(entry.path))
                    elif entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
            if seen > _MOST_ENTRIES:
                raise RefusedError(f"job {job.id} has too many files to be sure that none leads out of the workspace")

    def _refuse_outside(self, path: Path) -> None:
        if path.is_symlink() and path.exists() and not self.inside(path):  # nobody reads a link to nowhere
            raise RefusedError(f"{one_line(path.name)[:80]} of the job is a link that leaves the workspace: not read")


def owned(job: Job) -> bool:
    """Whether a job belongs to the user who runs this process."""
    place = job.dir or job.log
    try:
        return place is not None and place.stat().st_uid == os.getuid()
    except OSError:
        return False


def _remembered(known: dict[tuple[object, ...], T], key: tuple[object, ...], make: Callable[[], T]) -> T:
    if key not in known:
        known[key] = make()
        while len(known) > _KEPT:
            del known[next(iter(known))]
    return known[key]


def signature(job: Job) -> tuple[object, ...]:
    """Changes when the evidence does."""
    stats = []
    for path in (job.log, job.events, job.progress):
        try:
            held = path.stat() if path is not None else None
        except OSError:
            held = None
        stats.append((held.st_size, held.st_mtime_ns) if held else None)
    return (*stats, listing(job.database) if job.database else ())


def listing(database: Path) -> Signature:
    """The files of a database with their sizes and times."""
    found = []
    for folder in (folder for part in databases(database) for folder in (part, part / "wal")):
        if folder.is_dir():
            with os.scandir(folder) as entries:
                for entry in entries:
                    held = entry.stat(follow_symlinks=False)
                    found.append((entry.name, held.st_size, held.st_mtime_ns))
    return tuple(sorted(found))
