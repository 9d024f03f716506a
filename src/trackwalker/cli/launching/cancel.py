"""`trackwalker cancel`: end a job of this workspace."""

from __future__ import annotations

import json

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, JobName, Workspace
from trackwalker.cli.common.say import say
from trackwalker.cli.jobs.status import as_dict, sentence
from trackwalker.errors import UsageError
from trackwalker.launch import job_state as standing

SCHEMA = "trackwalker.cancel/1"


def cancel(
    job: JobName,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """End a job of this workspace; its ranks are signalled and save what they have. Other jobs are refused.

    Exit codes: 0 it was asked to end or had ended, 2 no such job or not ours, 69 the scheduler does not answer.
    """
    found = standing.find_job(job, workspace)
    if job not in (found.id, found.label) and "/" not in job:
        raise UsageError(f"'{job}' is not the whole id: did you mean job {found.id}?")
    before = standing.cancel(found)
    told = not before.ended
    if as_json:
        print(json.dumps({"schema": SCHEMA, "told": told, "before": as_dict(found, before)}, indent=1))
    else:
        say(f"job {found.id} was asked to end" if told else f"{sentence(found, before)}: nothing to cancel")
    return 0
