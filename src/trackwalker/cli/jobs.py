"""`trackwalker jobs`: what a workspace holds, newest first."""

from __future__ import annotations

import json
import sys

from rich.table import Table
from rich.text import Text

from trackwalker.cli.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.screen import Screen
from trackwalker.cli.workspace import jobs_of
from trackwalker.job.trust import shared_badly
from trackwalker.launch.standing import standings
from trackwalker.report.text import visible


def jobs(as_json: AsJson = False, workspace: Workspace = DEFAULT_WORKSPACE) -> None:
    """List the jobs of a workspace."""
    found = jobs_of(workspace)
    if warning := shared_badly(workspace):
        print(f"warning: {warning}", file=sys.stderr)
    rows = [
        {
            "id": job.id,
            "name": job.name,
            "state": seen.state,
            "running": seen.state == "running",
            "recorded": job.database is not None,
            "log": str(job.log) if job.log else None,
        }
        for job, seen in zip(found, standings(found), strict=True)
    ]
    if as_json:
        print(json.dumps({"schema": "trackwalker.jobs/1", "workspace": str(workspace), "jobs": rows}, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("id", "name", "state", "recorded"):
        table.add_column(column)
    for row in rows:
        recorded = "yes" if row["recorded"] else "no"
        table.add_row(Text(str(row["id"])), Text(visible(str(row["name"]))), str(row["state"]), recorded)
    console = Screen(highlight=False)
    console.print(table if rows else f"no jobs in {workspace}", markup=False)
