"""`trackwalker triage`: what happened, from the log alone."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from trackwalker.cli.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.diagnose.triage import SCHEMA, Triage
from trackwalker.diagnose.triage import triage as triage_job
from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.job.resolve import list_jobs, resolve
from trackwalker.report import triage as view
from trackwalker.report.text import json_visible


def triage(
    job: Annotated[str | None, typer.Argument(help="Job id, id prefix, log file or job directory.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every job of the workspace, newest first.")] = False,
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--md", help="Print Markdown instead of text.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Say what happened to a job, from its log alone, in a second; the job is not changed."""
    if everything == (job is not None):
        raise UsageError("name one job, or give --all for every job of the workspace")
    console = Console(highlight=False)
    if job is not None:
        found = triage_job(resolve(job, workspace))
        if as_json:
            print(json_visible(json.dumps(found.to_dict(), indent=1, ensure_ascii=False)))
        elif as_markdown:
            print(view.markdown(found), end="")
        else:
            view.render(found, console)
        return 0
    rows: list[Triage | tuple[str, str]] = []
    for each in list_jobs(workspace):
        try:
            rows.append(triage_job(each))
        except TrackwalkerError as e:
            rows.append((each.id, str(e)))
    if as_json:
        jobs = [{"job": {"id": r[0]}, "error": r[1]} if isinstance(r, tuple) else r.to_dict() for r in rows]
        document = {"schema": SCHEMA, "workspace": str(workspace), "jobs": jobs}
        print(json_visible(json.dumps(document, indent=1, ensure_ascii=False)))
    elif as_markdown:
        print("\n".join(view.markdown(r) for r in rows if isinstance(r, Triage)), end="")
    elif rows:
        view.table(rows, console)
    else:
        console.print(f"no jobs in {workspace}", markup=False)
    return 0
