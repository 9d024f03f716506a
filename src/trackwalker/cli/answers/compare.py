"""`trackwalker compare`: two jobs in, one verdict about their difference out."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from trackwalker.cli.answers.diagnose import FOUND
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, AsMd, JobName, Workspace
from trackwalker.cli.common.say import Screen, damaged
from trackwalker.diagnose.case import open_case
from trackwalker.diagnose.compare import compare as comparing
from trackwalker.diagnose.deviations.changed import changed as find_changes
from trackwalker.job.resolve import resolve
from trackwalker.job.shorthand import LATEST
from trackwalker.report.changed import render_changed
from trackwalker.report.compare import comparison_markdown, render_comparison


def compare(
    a: Annotated[str, typer.Argument(help="The baseline: job id, id prefix, log file or job directory.")],
    b: Annotated[str, typer.Argument(help="The job the verdict is about.")],
    as_json: AsJson = False,
    as_md: AsMd = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 when the verdict is an incident.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Find out by how much job B differs from job A, how sure that is, and why; neither job is changed.

    Exit codes: 0 a verdict, 1 an incident (with --exit-code), 2 nothing to read, 3 a verdict from damaged evidence.
    """
    comparison = comparing.compare(resolve(a, workspace), resolve(b, workspace))
    if as_json:
        print(comparison.verdict.to_json())
    elif as_md:
        print(comparison_markdown(comparison))
    else:
        render_comparison(comparison, Screen(highlight=False))
    return damaged(comparison.damage) or (FOUND if exit_code and comparison.verdict.outcome == "incident" else 0)


def changed(
    job: JobName = LATEST,
    begin: Annotated[
        str | None, typer.Option("--from", help="First step, or UTC time, of the window that is looked at.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Last step, or UTC time, of that window.")] = None,
    hosts: Annotated[str | None, typer.Option("--hosts", help="Only these hosts (a,b,c).")] = None,
    against: Annotated[
        str | None, typer.Option("--against", help="Measure their changes by these hosts' changes (a,b,c).")
    ] = None,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """List every metric that changed when a job became slow, stalled or failed, or in a window; nothing is changed.

    Each series is compared with its own past and with what the other hosts did meanwhile. Without --from and --to the
    job's own slow, stalled or failed stretches are compared with its full speed; a job without any: its second half
    with its first.

    Example: trackwalker changed 8308 --from 120 --to 180

    Exit codes: 0 compared, 2 nothing to compare, 3 compared, from damaged evidence.
    """
    with open_case(resolve(job, workspace)) as case:
        found = find_changes(case, begin, end, _names(hosts), _names(against))
    if as_json:
        print(json.dumps(found.to_dict(), indent=1))
    else:
        render_changed(found, Screen(highlight=False))
    return damaged(found.damage)


def _names(text: str | None) -> list[str] | None:
    return [name for name in text.split(",") if name] if text is not None else None
