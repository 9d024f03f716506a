"""`trackwalker status`: what the scheduler and the job itself say about a job, now."""

from __future__ import annotations

import json
from typing import Any

from trackwalker.agent.standing_now import UNDECIDED, standing_now
from trackwalker.cli.common.job_row import Row, row_of
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, JobName, Workspace
from trackwalker.cli.common.say import say
from trackwalker.cli.common.waiting import clock
from trackwalker.job.layout import Job
from trackwalker.job.shorthand import LATEST
from trackwalker.launch.job_state import Standing, find_job, scheduler_of

SCHEMA = "trackwalker.status/1"
UNREACHABLE = 69


def status(
    job: JobName = LATEST,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Say how a job is doing, or how it ended, as its scheduler sees it.

    Exit codes: 0 the state is known, even if the job failed; 2 no such job; 69 the state is unknown: the scheduler
    does not answer and the log does not say.
    """
    found = find_job(job, workspace)
    seen = standing_now(found)
    row = row_of(found, seen)
    if as_json:
        how_far = {"step": row.step, "steps": row.steps, "step_s": row.step_s, "eta_s": row.eta_s}
        say(json.dumps({"schema": SCHEMA, **as_dict(found, seen), **how_far}, indent=1))
    else:
        say("\n".join([sentence(found, seen), *_how_far(row)]))
    return UNREACHABLE if seen.state in UNDECIDED else 0


def _how_far(row: Row) -> list[str]:
    """Step, speed, time to the end, and where the log is."""
    of = f" of {row.steps}" if row.steps else ""
    speed = f", {row.step_s:.3g} s per step" if row.step_s is not None else ""
    left = f", {clock(row.eta_s)} to the end" if row.eta_s else ""
    lines = [f"step {row.step}{of}{speed}{left}"] if row.step is not None else []
    return lines + ([f"log {row.job.log}"] if row.job.log else [])


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
