"""`trackwalker status`: what the scheduler and the job itself say about a job, now."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from trackwalker.cli.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.say import say
from trackwalker.cli.standing_now import standing_now
from trackwalker.job.layout import Job
from trackwalker.launch.standing import Standing, find_job, scheduler_of

SCHEMA = "trackwalker.status/1"
UNREACHABLE = 69
JobName = Annotated[str, typer.Argument(metavar="JOB", help="Job id, id prefix, log file or job directory.")]


def status(
    job: JobName,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Say how a job stands: waiting, running, or how it ended, as its scheduler sees it.

    Exit codes: 0 the answer is known, 2 no such job, 69 the scheduler does not answer.
    """
    found = find_job(job, workspace)
    seen = standing_now(found)
    say(json.dumps({"schema": SCHEMA, **as_dict(found, seen)}, indent=1) if as_json else sentence(found, seen))
    return UNREACHABLE if seen.state == "unknown" else 0


def as_dict(job: Job, seen: Standing) -> dict[str, Any]:
    """A job and its standing as the commands print them."""
    return {
        "id": job.id,
        "name": job.name,
        "scheduler": scheduler_of(job),
        "state": seen.state,
        "ended": seen.ended,
        "exit": seen.exit,
        "meaning": seen.meaning,
        "reason": seen.reason,
        "nodes": seen.nodes,
        "restarts": seen.restarts,
        "log": str(job.log) if job.log else None,
        "dir": str(job.dir) if job.dir else None,
    }


def sentence(job: Job, seen: Standing) -> str:
    """The same in one line."""
    where = f" on {seen.nodes}" if seen.nodes and not seen.ended else ""
    tries = f" (restart {seen.restarts})" if seen.restarts and "restart" not in seen.meaning else ""
    told = seen.reason in seen.meaning or seen.state in seen.reason.lower()  # the reason says nothing new
    why = "" if told else f" ({seen.reason})"
    return f"job {job.id} {seen.meaning}{where}{tries}{why}"
