"""`trackwalker compare`: two jobs in, one verdict about their difference out."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trackwalker.cli.answers.diagnose import DAMAGED, FOUND
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.common.screen import Screen
from trackwalker.diagnose.compare import compare as comparing
from trackwalker.job.resolve import resolve
from trackwalker.report.compare import comparison_markdown, render_comparison


def compare(
    a: Annotated[str, typer.Argument(help="The baseline: job id, id prefix, log file or job directory.")],
    b: Annotated[str, typer.Argument(help="The job the verdict is about.")],
    as_json: AsJson = False,
    as_md: Annotated[bool, typer.Option("--md", help="Print Markdown for a ticket.")] = False,
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
    for line in comparison.damage:
        print(f"trackwalker: damaged evidence: {line}", file=sys.stderr)
    if comparison.damage:
        return DAMAGED
    return FOUND if exit_code and comparison.verdict.outcome == "incident" else 0
