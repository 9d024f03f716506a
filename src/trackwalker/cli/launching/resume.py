"""`trackwalker resume`: whether a run that ended is worth another attempt."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, JobName, Workspace
from trackwalker.cli.common.say import say
from trackwalker.errors import UsageError
from trackwalker.job.run import load_run
from trackwalker.launch.job_state import find_job, standing
from trackwalker.launch.resubmit import again, environment
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


def resubmit(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job id, directory or log.")],
    secrets: Annotated[
        list[str] | None, typer.Argument(help="Behind '--': secrets of the request, which no record keeps.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command, and start nothing.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """Ask for a recorded run again: the same words, knobs and code."""
    found = find_job(job, workspace)  # also one that never wrote a line
    record = load_run(found.run_json)
    if record is None:
        raise UsageError(f"{found.label} has no run.json: only runs that trackwalker started can be repeated")
    words = again(record, secrets or [])
    if not record.snapshot:
        was = f" ({record.code['commit']})" if "commit" in record.code else ""
        print(f"note: that run{was} kept no code snapshot; this one takes the code as it is now", file=sys.stderr)
    if dry_run:
        told = [f"{name}={shlex.quote(value)}" for name, value in record.knobs.items()]
        print(" ".join([*told, "trackwalker", shlex.join(_starred(words, secrets or []))]))
        return
    # In our place, so that signals and the exit code are the run's own.
    argv = [sys.executable, "-m", "trackwalker", *words]
    os.execve(sys.executable, argv, environment(record, os.environ))  # noqa: S606


def _starred(words: list[str], secrets: list[str]) -> list[str]:
    return [f"{word.partition('=')[0]}=***" if word in secrets else word for word in words]
