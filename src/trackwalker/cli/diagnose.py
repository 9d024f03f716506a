"""`trackwalker diagnose`: one job in, one verdict out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trackwalker.cli.diagnose_parts import print_brief, print_tests
from trackwalker.cli.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.save import save, write_html
from trackwalker.diagnose import engine
from trackwalker.diagnose.playbook import load_playbooks
from trackwalker.diagnose.question import answer
from trackwalker.errors import UsageError
from trackwalker.job.resolve import resolve
from trackwalker.report.markdown import markdown
from trackwalker.report.terminal import render

DAMAGED = 3  # a verdict was given, from evidence that is damaged
FOUND = 1  # with --exit-code: the verdict is an incident


def diagnose(
    job: Annotated[str, typer.Argument(help="Job id, id prefix, log file or job directory.")],
    as_json: AsJson = False,
    saving: Annotated[
        bool, typer.Option("--save", help="Write verdict.json and report.html into the job directory.")
    ] = False,
    as_md: Annotated[bool, typer.Option("--md", help="Print Markdown for a ticket.")] = False,
    brief: Annotated[
        bool, typer.Option("--brief", help="Print the strongest of it in less than 3 kB; with --json as an object.")
    ] = False,
    tests: Annotated[
        bool, typer.Option("--tests", help="Print every question that was asked, its answer, and what was not asked.")
    ] = False,
    question: Annotated[
        str | None, typer.Option("--question", "-q", help='What you want to know, e.g. "why is TGS so bad".')
    ] = None,
    playbooks: Annotated[
        Path | None,
        typer.Option("--playbooks", envvar="TRACKWALKER_PLAYBOOKS", help="Folder with playbooks of your own."),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the HTML report to this file.")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 when the verdict is an incident.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Find out what went wrong with a job, with the evidence; the job is not changed.

    Example: trackwalker diagnose 8308 --question "why is TGS so bad"

    Exit codes: 0 a verdict, 1 an incident (with --exit-code), 2 nothing to read, 3 a verdict from damaged evidence.
    """
    if as_md + brief + tests > 1 or (as_md and as_json):
        raise UsageError("give one of --brief, --tests and --md; --json goes with the first two")
    found = resolve(job, workspace)
    diagnosis = engine.diagnose(found, load_playbooks(playbooks))
    if question is not None:
        diagnosis = replace(diagnosis, verdict=answer(question, diagnosis.verdict))
    if brief:
        print_brief(diagnosis, as_json)
    elif tests:
        print_tests(diagnosis, as_json)
    elif as_json:
        print(diagnosis.verdict.to_json())
    elif as_md:
        print(markdown(diagnosis.verdict))
    else:
        render(diagnosis.verdict, Console(highlight=False))
    if html is not None:
        write_html(diagnosis, found, html)
    if saving:
        path = save(diagnosis, found)
        print(f"report: {path}", file=sys.stderr)
    for line in diagnosis.damage:
        print(f"trackwalker: damaged evidence: {line}", file=sys.stderr)
    if diagnosis.damage:
        return DAMAGED
    return FOUND if exit_code and diagnosis.verdict.outcome == "incident" else 0
