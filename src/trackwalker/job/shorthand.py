"""Short names for jobs: the latest, the ones before it, and the ids that Slurm's own commands print."""

from __future__ import annotations

import contextlib
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

from trackwalker.errors import JobNotFoundError
from trackwalker.job.layout import Job
from trackwalker.job.shards import databases
from trackwalker.job.whole import read_whole

LATEST = "latest"
_COUNTED = re.compile(r"latest(?:~(\d+))?")
_DATED = re.compile(r"(?:local_|k8s-)(\d{8})[_-](\d{6})")
_SNAPSHOT = re.compile(r"artifact_(\d{9,11})_")
# 8308_4 (a task of an array), 8308.batch (a step), 8308+1 (a part of a heterogeneous job): all in the log of 8308.
_PART = re.compile(r"(\d+)(?:_\d+|_\[[\d,%-]+\])?(?:\+\d+)?(?:\.\w+)?")


def position(name: str) -> int | None:
    """How many jobs before the latest a name means; None for a name that does not count."""
    if name == "-":
        return 1
    counted = _COUNTED.fullmatch(name)
    return int(counted[1] or 0) if counted else None


def nth(jobs: list[Job], before: int, workspace: Path) -> Job:
    """The job so many before the latest, by the time they started."""
    if not jobs:
        raise JobNotFoundError(f"there is no job in {workspace} yet")
    if before >= len(jobs):
        raise JobNotFoundError(f"there are only {len(jobs)} jobs in {workspace}; 'trackwalker jobs' lists them")
    return sorted(jobs, key=lambda job: (started(job) or 0.0, job.id), reverse=True)[before]


def without_part(name: str) -> str:
    """The id of the whole job that a task, step or part of it belongs to."""
    part = _PART.fullmatch(name)
    return part[1] if part else name


def started(job: Job) -> float | None:
    """When a job began, or the first that is known of its files."""
    if (known := known_start(job)) is not None:
        return known
    with contextlib.suppress(OSError):
        # A log grows until its job ends; a directory is touched when something in it is made.
        places = [place for place in (job.dir, job.log) if place is not None]
        return min(place.stat().st_mtime for place in places) if places else None
    return None


def known_start(job: Job) -> float | None:
    """When a job was asked for: by its record, its id, upstream's snapshot, or the first moment of its recording.

    None where only the times of files are left: a copy has new ones.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        if job.run_json is not None:
            return float(json.loads(read_whole(job.run_json))["created"])
    with contextlib.suppress(ValueError):
        if dated := _DATED.match(job.id):
            return datetime.strptime(f"{dated[1]}{dated[2]}", "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
    return snapshot_time(job) or _recorded_since(job)


def snapshot_time(job: Job) -> float | None:
    """The time that the name of upstream's code snapshot carries: a link, or a small file where links are not kept."""
    with contextlib.suppress(OSError, ValueError):
        link = job.dir / "artifact" if job.dir is not None else None
        if link is not None:
            told = os.readlink(link) if link.is_symlink() else read_whole(link)
            match = _SNAPSHOT.search(told if isinstance(told, str) else told.decode("utf-8", "replace"))
            return float(match[1]) if match else None
    return None


def _recorded_since(job: Job) -> float | None:
    """The first moment of the oldest block of the recording."""
    first = []
    with contextlib.suppress(OSError):
        parts = databases(job.database) if job.database is not None else []
        for block in (block for part in parts for block in part.glob("*/meta.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                first.append(float(json.loads(read_whole(block))["minTime"]) / 1000.0)
    return min(first, default=None)
