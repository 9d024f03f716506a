"""Which jobs of a workspace changed since they were last read, without opening any: one pass over its names.

At a hundred thousand jobs, looking into every directory costs half a minute, and nearly all of them ended long ago. A
job whose log and directory have the size and times they had is what it was: a link in a directory cannot be replaced
without the directory's time, nor a log grow without its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import JobNotFoundError
from trackwalker.job.layout import LOG_SUFFIXES, NAME_FORM, Job
from trackwalker.job.resolve import jobs_among


@dataclass(frozen=True)
class Seen:
    """What a workspace holds of one job, by its names alone."""

    mark: str  # changes when its log or its directory does
    names: tuple[str, ...]
    changed: float  # when its log was written last, or its directory where it has no log


def scan(root: Path) -> dict[str, Seen]:
    """Every id in a workspace."""
    parts: dict[str, list[tuple[str, int, int]]] = {}
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                name = entry.name
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
        return {}
    except OSError as e:
        raise JobNotFoundError(f"the workspace {root} cannot be read: {e.strerror}") from e
    found = {}
    for job, held in parts.items():
        held.sort()
        mark = ";".join(f"{size}.{at}" for _, size, at in held)
        times = [at for name, _, at in held if name.endswith(LOG_SUFFIXES)] or [at for _, _, at in held]
        found[job] = Seen(mark, tuple(name for name, _, _ in held), max(times) / 1e9)
    return found


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
