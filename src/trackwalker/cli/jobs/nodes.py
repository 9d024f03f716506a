"""`trackwalker nodes`: which nodes were in trouble lately, and which of them to leave out."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.common.say import say
from trackwalker.cli.common.workspace import there
from trackwalker.fleet.scan import Seen, newest, scan
from trackwalker.job.layout import Job
from trackwalker.launch.job_state import standings
from trackwalker.launch.ledger import WINDOW_S, Suspect, note, of_end, suspects, to_exclude
from trackwalker.logs.formats.nodelist import expand

SCHEMA = "trackwalker.nodes/1"
_MOST_ASKED = 2000  # jobs of the week that the scheduler is asked about


def nodes(as_json: AsJson = False, workspace: Workspace = DEFAULT_WORKSPACE) -> None:
    """List the nodes that were in trouble in the jobs of a workspace, and which to leave out; no job is changed.

    The scheduler is asked how jobs ended whose end nobody wrote down: nodes that it lost are added to the ledger.
    """
    seen = scan(there(workspace))
    note_lost_nodes(workspace, seen)
    found = suspects(workspace, known=ran_lately(workspace, seen))
    if as_json:
        hosts = [
            {
                "host": suspect.host,
                "exclude": suspect.exclude,
                "why": suspect.why,
                "rate": asdict(suspect.rate) if suspect.rate else None,
                "incidents": [incident.record() for incident in suspect.incidents],
            }
            for suspect in found
        ]
        print(json.dumps({"schema": SCHEMA, "workspace": str(workspace), "nodes": hosts}, indent=1))
        return
    if not found:
        say(f"no node was in trouble in {workspace} within 7 days")
    for suspect in found:
        say(f"{suspect.host}  {'leave out' if suspect.exclude else 'watch'}: {suspect.why}")
        for incident in suspect.incidents:
            stamp = time.strftime("%Y-%m-%d %H:%M", time.gmtime(incident.t))
            say(f"  {stamp} UTC  job {incident.job} attempt {incident.attempt}  {incident.kind}: {incident.line}")
    if left_out := [suspect.host for suspect in found if suspect.exclude]:
        say(f"suggested: --exclude={','.join(left_out)}")


def ran_lately(workspace: Path, seen: Mapping[str, Seen]) -> dict[str, dict[str, float]] | None:
    """Which jobs of the last week ran on which hosts, from the index of the workspace; None where there is none yet."""
    from trackwalker.fleet.questions import ran_since
    from trackwalker.fleet.source import refreshed

    store = refreshed(workspace, seen)
    return ran_since(store, time.time() - WINDOW_S) if store is not None else None


def note_lost_nodes(workspace: Path, seen: Mapping[str, Seen]) -> None:
    """Add what the scheduler tells of jobs of the last week: whoever lost its first node could not write it down."""
    since = time.time() - WINDOW_S
    found = newest(workspace, _MOST_ASKED, since, seen=seen)[0]
    recent = [job for job in found if job.id.isdigit() and _written(job) >= since]
    for job, ended in zip(recent, standings(recent), strict=True):
        with contextlib.suppress(OSError):
            note(workspace, of_end(job.id, ended.restarts, ended.state, ended.hosts, _written(job)))


def _written(job: Job) -> float:
    try:
        return (job.log or job.dir or Path()).stat().st_mtime
    except OSError:
        return 0.0


def suspect_lines(workspace: Path, nodelist: str | None, exclude: str | None) -> list[str]:
    """A warning for each node that the job may get and that had better be left out."""
    asked, left_out = set(expand(nodelist or "")), set(expand(exclude or ""))
    return [_line(s) for s in to_exclude(workspace) if s.host not in left_out and (not asked or s.host in asked)]


def _line(suspect: Suspect) -> str:
    return (
        f"warning: {suspect.host} may fail again ({suspect.why}): --exclude={suspect.host}, or see 'trackwalker nodes'"
    )
