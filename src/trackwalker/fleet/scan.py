"""Which jobs of a workspace changed since they were last read, without opening any: one pass over its names.

At a hundred thousand jobs, looking into every directory costs half a minute, and nearly all of them ended long ago. A
job whose log and directory have the size and times they had is what it was: a link in a directory cannot be replaced
without the directory's time, nor a log grow without its own.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from trackwalker.errors import JobNotFoundError
from trackwalker.job.layout import LOG_SUFFIXES, NAME_FORM, Job
from trackwalker.job.resolve import jobs_among

TURNS = 16  # listings after which every old job was looked at


class Seen(NamedTuple):  # a hundred thousand are made with each look: a data class takes three times as long
    """What a workspace holds of one job, by its names alone."""

    mark: str  # changes when its log or its directory does
    names: tuple[str, ...]
    changed: float  # when its log was written last, or its directory where it has no log


@dataclass
class Spared:
    """Jobs that ended long ago: each listing looks at a sixteenth of them only, and that all are still there."""

    names: dict[str, str] = field(default_factory=dict)  # of logs and directories, with the id of their job
    turn: int = 0

    def missing(self, here: set[str]) -> set[str]:
        """The jobs of which a name is gone."""
        return {self.names[name] for name in self.names.keys() - here} if len(here) < len(self.names) else set()


def scan(root: Path, spared: Spared | None = None) -> dict[str, Seen]:
    """Every id in a workspace; of the spared ones those only whose turn it is, or that lack a name by now."""
    if spared is None:
        return _listed(root, {}, -1)[0]
    spared.turn = (spared.turn + 1) % TURNS
    found, here = _listed(root, spared.names, spared.turn)
    for job in spared.missing(here):
        for name in [name for name, owner in spared.names.items() if owner == job]:
            del spared.names[name]
        found[job] = Seen("", (), 0.0)
    return found


class Written:
    """Every id in a workspace and when it was written to: of a job with a log only that is asked.

    Of a hundred thousand jobs fifty are shown: the names of a job are put together for those alone.
    """

    def __init__(self, root: Path) -> None:
        self.times: dict[str, float] = {}
        self._ids: list[str] = []
        self._names: list[str] = []
        try:
            with os.scandir(root) as entries:
                self._look(entries)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as e:
            raise JobNotFoundError(f"the workspace {root} cannot be read: {e.strerror}") from e
        silent = self.of(set(self._ids).difference(self.times))
        asked = {job: max(_changed(root / name) for name in each.names) for job, each in silent.items()}
        self.unlogged = {job for job, at in asked.items() if at >= 0.0}
        self.times |= {job: asked[job] for job in self.unlogged}

    def _look(self, entries: Iterable[os.DirEntry[str]]) -> None:
        times, form = self.times, NAME_FORM.match
        for entry in entries:
            name = entry.name
            is_log = name.endswith(LOG_SUFFIXES)
            match = form(name[:-4] if is_log else name)
            if match is None:
                continue
            job = match[1]
            self._ids.append(job)
            self._names.append(name)
            if is_log:
                try:
                    at = entry.stat().st_mtime
                except OSError:  # gone meanwhile, or a link to nowhere
                    continue
                if at > times.get(job, -1.0):
                    times[job] = at

    def of(self, jobs: Collection[str]) -> dict[str, Seen]:
        """What is there of some jobs, without a mark."""
        names: dict[str, list[str]] = {job: [] for job in jobs}
        for job, name in zip(self._ids, self._names, strict=True):
            if job in names:
                names[job].append(name)
        return {job: Seen("", tuple(sorted(held)), self.times.get(job, -1.0)) for job, held in names.items()}


def _changed(path: Path) -> float:
    """When it was written last; -1 for what is gone meanwhile, or a link to nowhere."""
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0


def _listed(root: Path, spared: Mapping[str, str], turn: int) -> tuple[dict[str, Seen], set[str]]:
    parts: dict[str, list[tuple[str, int, int]]] = {}
    here: set[str] = set()
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                name = entry.name
                owner = spared.get(name)
                if owner is not None:
                    here.add(name)
                    if hash(owner) % TURNS != turn:
                        continue
                stem = name[:-4] if name.endswith(LOG_SUFFIXES) else name
                match = NAME_FORM.match(stem)
                if match is None:
                    continue
                try:
                    about = entry.stat()
                except OSError:
                    continue
                parts.setdefault(match["id"], []).append((name, about.st_size, about.st_mtime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return {}, here
    except OSError as e:
        raise JobNotFoundError(f"the workspace {root} cannot be read: {e.strerror}") from e
    return {job: _seen(held) for job, held in parts.items()}, here


def _seen(held: list[tuple[str, int, int]]) -> Seen:
    held.sort()
    if len(held) == 2 and held[1][0].endswith(LOG_SUFFIXES) and not held[0][0].endswith(LOG_SUFFIXES):
        (folder, _, made), (log, size, written) = held  # nearly always
        return Seen(f"{made};{size}.{written}", (folder, log), written / 1e9)
    mark = ";".join(f"{name} {size}.{at}" for name, size, at in held).replace(" ", "/").replace("|", "/")
    times = [at for name, _, at in held if name.endswith(LOG_SUFFIXES)] or [at for _, _, at in held]
    return Seen(mark, tuple(name for name, _, _ in held), max(times) / 1e9)


def resolved(
    root: Path, seen: Mapping[str, Seen], wanted: Iterable[str], skipped: list[str] | None = None
) -> dict[str, Job]:
    """The jobs of some ids, looked at closely: their logs found, their links followed; one without both is none."""
    found: dict[str, Job] = {}
    for job_id in wanted:
        paths = [root / name for name in seen[job_id].names]
        jobs = jobs_among(paths, skipped)
        if jobs:
            found[job_id] = jobs[0]
            continue
        waiting = next((path for path in paths if os.path.isfile(path / "run.json")), None)
        if waiting is not None:  # it was submitted and has written nothing yet
            found[job_id] = Job(job_id, None, waiting.absolute())
    return found


_NO_TIME = 1e8  # an archive that kept no times gives its files those of 1970: they tell nothing


def newest(
    root: Path,
    count: int,
    since: float = 0.0,
    skipped: list[str] | None = None,
    seen: Written | Mapping[str, Seen] | None = None,
) -> tuple[list[Job], int]:
    """So many jobs, the one that was written last first, those without a log before them; and how many more there are.

    A directory without a log and without a run.json is no job (a shared folder of checkpoints): it is not counted
    unless it looks like one from outside. `seen` is what a look at the workspace gave already.
    """
    seen = Written(root) if seen is None else seen
    times, silent = (seen.times, seen.unlogged) if isinstance(seen, Written) else _times(seen)
    if since:
        times = {name: at for name, at in times.items() if at >= since or at < _NO_TIME}
    waiting = silent & times.keys()

    def looked_into(jobs: Collection[str]) -> dict[str, Job]:
        return resolved(root, seen.of(jobs) if isinstance(seen, Written) else seen, jobs, skipped)

    found = looked_into(waiting)
    unlogged = sorted((job for job in found.values() if job.log is None), key=lambda job: job.id, reverse=True)
    waiting -= {job.id for job in found.values() if job.log is not None}  # they have one elsewhere
    logged = {name: at for name, at in times.items() if name not in waiting}
    left = max(count - len(unlogged), 0)
    order = [name for _, name in heapq.nlargest(left, zip(logged.values(), logged, strict=True))]
    shown = looked_into(order)
    jobs = [*unlogged, *(shown[name] for name in order if name in shown)]
    return jobs[:count], max(len(unlogged) + len(logged) - count, 0)


def _times(seen: Mapping[str, Seen]) -> tuple[dict[str, float], set[str]]:
    """When each was written to, and which have no log."""
    unlogged = {name for name, each in seen.items() if not any(part.endswith(LOG_SUFFIXES) for part in each.names)}
    return {name: each.changed for name, each in seen.items()}, unlogged
