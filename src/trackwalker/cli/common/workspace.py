"""The jobs of a workspace as commands list them: a missing workspace is an error, an unreadable job a line."""

from __future__ import annotations

import sys
from pathlib import Path

from trackwalker.cli.common.say import say
from trackwalker.errors import JobNotFoundError
from trackwalker.fleet.scan import Written, newest
from trackwalker.job.layout import Job
from trackwalker.job.resolve import list_jobs
from trackwalker.launch.job_state import submitted


def there(workspace: Path) -> Path:
    """The workspace; one that does not exist is a mistake, not an empty one."""
    if not workspace.is_dir():
        raise JobNotFoundError(f"the workspace {workspace} does not exist (set --workspace or JOB_WORKSPACE)")
    return workspace


def jobs_of(workspace: Path, waiting: bool = True) -> list[Job]:
    """Every job that can be read, newest first; with `waiting` also those that have no log yet."""
    there(workspace)
    skipped: list[str] = []
    found = submitted(workspace, skipped) if waiting else list_jobs(workspace, skipped)
    _warn(skipped)
    return found


def newest_of(workspace: Path, count: int, since: float = 0.0, seen: Written | None = None) -> tuple[list[Job], int]:
    """The newest so many of them and how many more there are: of a hundred thousand only those few are looked into.

    With `since` only those that were written to since; `seen` is a look at the workspace that was taken already.
    """
    skipped: list[str] = []
    found = newest(there(workspace), count, since, skipped, seen)
    _warn(skipped)
    return found


def _warn(skipped: list[str]) -> None:
    if skipped:
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        say(f"trackwalker: warning: {skipped[0]}{more}", file=sys.stderr)
