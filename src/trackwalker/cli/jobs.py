"""`trackwalker jobs`: what a workspace holds, newest first."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trackwalker.cli.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.job.processes import is_live
from trackwalker.job.resolve import list_jobs


def jobs(as_json: AsJson = False, workspace: Workspace = DEFAULT_WORKSPACE) -> None:
    """List the jobs of a workspace."""
    rows = [
        {
            "id": job.id,
            "name": job.name,
            "running": is_live(job.state),
            "recorded": job.database is not None,
            "log": str(job.log) if job.log else None,
        }
        for job in list_jobs(workspace)
    ]
    if as_json:
        print(json.dumps({"schema": "trackwalker.jobs/1", "workspace": str(workspace), "jobs": rows}, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("id", "name", "state", "recorded"):
        table.add_column(column)
    for row in rows:
        state = "running" if row["running"] else "ended"
        table.add_row(Text(str(row["id"])), Text(str(row["name"])), state, "yes" if row["recorded"] else "no")
    console = Console(highlight=False)
    console.print(table if rows else f"no jobs in {workspace}", markup=False)
