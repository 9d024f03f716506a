"""`trackwalker clean`: code snapshots that no job needs any more."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.agent.standing_now import standing_now
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.common.say import say
from trackwalker.cli.common.waiting import span
from trackwalker.cli.common.workspace import jobs_of
from trackwalker.errors import RefusedError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.shorthand import started
from trackwalker.launch.code.snapshot_cleanup import Item, Stock, sweep, take_stock
from trackwalker.launch.job_state import find_job
from trackwalker.launch.slurm.client import Slurm


def clean(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove what is listed as ORPHAN.")] = False,
    older: Annotated[
        str | None, typer.Option("--older-than", metavar="30d", help="Also jobs that are over and started before that.")
    ] = None,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """List code snapshots and who needs them; with --yes, remove those that nobody does."""
    if not workspace.is_dir():
        raise UsageError(f"there is no workspace {workspace}; name it with --workspace")
    workspace = workspace.resolve()
    if older is not None:  # first: a snapshot may be needed by such a job only
        _old_jobs(workspace, time.time() - span(older), yes, as_json)
    stock = take_stock(workspace, _ended)
    removed = sweep(workspace, _ended) if yes else None
    if as_json:
        print(json.dumps({"schema": "trackwalker.clean/1", "workspace": str(workspace), **_data(stock, removed)}))
        return
    for item in stock.items:
        say(f"{item.state.upper():<12}{item.path.relative_to(workspace)}{_why(item)}")
    counts = f"{len(stock.items) - len(stock.orphans)} referenced, {len(stock.orphans)} orphaned"
    say(f"Artifacts: {counts}; {len(stock.blobs)} files of {_size(stock.blob_bytes)} that nobody needs.")
    if removed is not None:
        say(f"Done. Removed {len(removed.items)} of {len(stock.orphans)}, {_size(removed.blob_bytes)} freed.")
    elif stock.orphans or stock.blobs:
        say("Nothing was removed; --yes removes what nobody needs.")


def _old_jobs(workspace: Path, before: float, yes: bool, quiet: bool) -> None:
    for job in jobs_of(workspace):
        when = started(job)
        if when is None or when >= before or not standing_now(job).ended:
            continue
        if yes:
            remove(job, workspace)
        if not quiet:
            say(f"{'removed' if yes else 'OLD':<12}job {job.id}, {_size(0 if yes else size_of(job))}")


def _ended(job_id: str) -> bool:
    # Only Slurm can be asked by id alone. What cannot be asked about is not over.
    return job_id.isdigit() and Slurm().state(job_id).ended


def _why(item: Item) -> str:
    if item.state == "fresh":
        return "  <- less than a day old"
    if item.state == "foreign":
        return "  <- belongs to another user"
    return f"  <- {', '.join(item.holders)}" if item.holders else ""


def _data(stock: Stock, removed: Stock | None) -> dict[str, object]:
    items = [{"path": str(i.path), "state": i.state, "holders": list(i.holders)} for i in stock.items]
    gone = None if removed is None else [str(item.path) for item in removed.items]
    return {"items": items, "blobs": len(stock.blobs), "blob_bytes": stock.blob_bytes, "removed": gone}


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


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
