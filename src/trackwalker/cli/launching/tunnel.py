"""`trackwalker tunnel`: the way from one's own machine to a running job's pages."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.job.resolve import resolve
from trackwalker.observe import tunnel as observe_tunnel

NOTHING_THERE = 1


def tunnel(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job id, id prefix, log file or job directory.")],
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Print the SSH commands and addresses of a running job's Prometheus, TensorBoard and Ray dashboard.

    Exit codes: 0 there is something to reach, 1 there is not (and why), 2 no such job.
    """
    found = observe_tunnel.tunnel(resolve(job, workspace))
    print(json.dumps(found.to_dict(), indent=1) if as_json else "\n".join(found.lines()))
    return NOTHING_THERE if found.why_none else 0
