"""`trackwalker rm`: remove jobs that are over, with their logs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.agent.ask.standing_now import standing_now
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.cli.common.say import say
from trackwalker.errors import RefusedError, UsageError
from trackwalker.job.layout import Job
from trackwalker.launch.job_state import find_job


def rm(
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOB…", help="Jobs to remove: ids, 'latest', logs, directories.")
    ],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; every job has to be named by its whole id.")
    ] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Remove jobs that are over, with their logs; asks first.

    Exit codes: 0 removed, 1 not removed because you said no, 2 no such job, or it is not over.
    """
    found = [find_job(name, workspace) for name in jobs]
    for name, job in zip(jobs, found, strict=True):
        if yes and name not in (job.id, job.label) and "/" not in name:
            raise UsageError(f"--yes needs whole ids: '{name}' is job {job.id}")
        refuse_unfinished(job)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody can be asked here: name whole ids and add --yes")
        for job in found:
            say(f"job {job.id} ({job.name}), {size_of(job) / 1e6:.1f} MB")
        if not typer.confirm(f"Remove {len(found)} job{'s' if len(found) > 1 else ''} for good?"):
            return 1
    for job in found:
        remove(job, workspace)
        say(f"job {job.id} is removed")
    return 0


def refuse_unfinished(job: Job) -> None:
    """Raise for a job that runs, waits, or of which nobody knows."""
    seen = standing_now(job)
    if not seen.ended:
        raise RefusedError(f"job {job.id} is not over ({seen.meaning or seen.state}): not removed")


def size_of(job: Job) -> int:
    """Bytes of its directory and its log."""
    files = [p for p in job.dir.rglob("*") if p.is_file() and not p.is_symlink()] if job.dir else []
    return sum(p.stat().st_size for p in [*files, *([job.log] if job.log else [])])


def remove(job: Job, workspace: Path) -> None:
    """Take away a job's directory and log; only what lies in the workspace itself, and never through a link."""
    root = workspace.resolve()
    for place in (job.dir, job.log):
        if place is None or not (place.exists() or place.is_symlink()):
            continue
        if place.parent.resolve() != root or place.is_symlink():
            raise RefusedError(f"{place} does not lie in {workspace}: not removed")
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()
