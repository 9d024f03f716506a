"""`trackwalker resume`: whether a run that ended is worth another attempt."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, JobName, Workspace
from trackwalker.cli.common.say import say
from trackwalker.launch.job_state import find_job, standing
from trackwalker.logs.formats.nodelist import expand
from trackwalker.watch.supervise.resume import resume as start
from trackwalker.watch.supervise.resume import weigh

SCHEMA = "trackwalker.resume/1"


def resume(
    job: JobName,
    yes: Annotated[bool, typer.Option("--yes", help="Start the attempt, when there is to be one.")] = False,
    exclude: Annotated[str, typer.Option("--exclude", help="Further nodes to leave out, as n3,n[7-9].")] = "",
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Say whether a run that ended is worth another attempt, and on which nodes; with --yes, start it.

    Exit codes: 0 there is another attempt, 1 there is none ('resubmit' asks for the run anyway), 2 no such job.
    """
    found = find_job(job, workspace)
    seen = standing(found)
    weighed = weigh(found, seen, expand(exclude))
    answer = weighed.to_dict()
    line = weighed.sentence()
    if yes and weighed.decision.resume:
        begun = start(weighed, seen)
        answer |= {"started": begun.id, "dir": str(begun.job_dir), "log": str(begun.log), "requeued": begun.requeued}
        line += f"\njob {begun.id}  log {begun.log}"
    say(json.dumps({"schema": SCHEMA, **answer}, indent=1) if as_json else line)
    return 0 if weighed.decision.resume else 1
