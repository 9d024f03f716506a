"""`trackwalker diagnose`: one job in, one verdict out."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.agent.answers import as_text
from trackwalker.agent.verdicts import verdict_answer
from trackwalker.cli.answers.triage import log_of, triage
from trackwalker.cli.common.options import (
    DEFAULT_WORKSPACE,
    AsJson,
    AsMd,
    MetricMap,
    StoreAuthFile,
    StoreCaFile,
    StoreTenant,
    Workspace,
    as_named,
)
from trackwalker.cli.common.saving import save, write_html
from trackwalker.cli.common.say import Screen, damaged, print_json
from trackwalker.cli.common.waiting import waiting
from trackwalker.diagnose import engine
from trackwalker.diagnose.causes.playbook import load_playbooks
from trackwalker.diagnose.elsewhere import with_metrics
from trackwalker.diagnose.saved import saved_verdict, standing_diagnosis
from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.asked import Asked, Diagnosis, answer, state_of
from trackwalker.errors import UsageError
from trackwalker.job.shorthand import LATEST, position
from trackwalker.report.markdown import markdown
from trackwalker.report.terminal import render
from trackwalker.report.text import clip, json_visible, one_line
from trackwalker.telemetry.foreign.names import load_maps
from trackwalker.telemetry.foreign.remote import Access
from trackwalker.telemetry.query import parse_time

FOUND = 1  # with --exit-code: the verdict is an incident


# The parts of a diagnosis on their own: the brief verdict, and the questions that were asked.
_MOST_NAMED = 8


def print_brief(diagnosis: Diagnosis, as_json: bool) -> None:
    """The verdict below 3 kB, as an agent gets it; in words unless JSON is asked for."""
    answer = verdict_answer(diagnosis.verdict, diagnosis.asked, diagnosis.damage, "brief")
    text = as_text(answer)
    if as_json:
        print(json_visible(text))
        return
    for name, held in json.loads(text).items():
        if isinstance(held, list):
            print(f"{name}:")
            for each in held:
                print(f"  - {one_line(each if isinstance(each, str) else _words(each))}")
        else:
            print(f"{name}: {one_line(held if isinstance(held, str) else _words(held))}")


def print_tests(asked: Asked, job: str, as_json: bool) -> None:
    """Every question with its answer; what was not asked, and why."""
    if as_json:
        print_json(asked.to_dict(job))
        return
    for examination in asked.examined():
        print(f"{examination.playbook.id}: {state_of(examination)}")
        for result in examination.results:
            row = asked.row(result)
            names = row.get("names", [])
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            who = f" ({', '.join(names[:_MOST_NAMED])}{more})" if names else ""
            where = "; ".join(str(row[k]) for k in ("asked_of", "window", "fires_when") if k in row)
            lacks = f"; missing: {', '.join(row['missing'][:_MOST_NAMED])}" if "missing" in row else ""
            print(f"  {row['answer']:8}{row['role']:8} {row['test']}{one_line(who)}: {one_line(where + lacks)}")
    for book in asked.uncalled:
        print(f"not asked: {book.id}: {asked.why_uncalled(book)}")


def print_evidence(verdict: Verdict, asked: str, as_json: bool) -> None:
    """Pieces of evidence by their numbers, in full: what they say, their values, and where these come from."""
    known = {item.id: item for item in verdict.evidence}
    wanted = list(known) if asked == "all" else [name.strip() for name in asked.split(",") if name.strip()]
    if missing := [name for name in wanted if name not in known]:
        last = f"e1 to {verdict.evidence[-1].id}" if known else "none"
        raise UsageError(f"no evidence '{clip(one_line(missing[0]), 40)}' in this verdict: it has {last}")
    if as_json:
        print_json({"job": verdict.job.id, "evidence": [known[name].model_dump() for name in wanted]})
        return
    for item in (known[name] for name in wanted):
        print(f"{item.id}  {one_line(item.says)}\n    {item.kind}: {one_line(item.source)}")
        for name, value in item.values.items():
            print(f"    {one_line(name)}: {value:g}")


def _words(held: object) -> str:
    if isinstance(held, dict):
        return "; ".join(f"{k}: {_words(v)}" for k, v in held.items())
    if isinstance(held, list):
        return ", ".join(_words(v) for v in held)
    return clip(str(held), 400)


def diagnose(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Job id, prefix, log or directory; default: the latest.")
    ] = None,
    as_json: AsJson = False,
    saving: Annotated[
        bool, typer.Option("--save", help="Write verdict.json and report.html into the job directory.")
    ] = False,
    as_md: AsMd = False,
    brief: Annotated[
        bool, typer.Option("--brief", help="Print the strongest of it in less than 3 kB; with --json as an object.")
    ] = False,
    tests: Annotated[
        bool, typer.Option("--tests", help="Print every question that was asked, its answer, and what was not asked.")
    ] = False,
    evidence: Annotated[
        str | None,
        typer.Option("--evidence", metavar="e7,e24", help="Print these pieces of evidence in full; 'all': every one."),
    ] = None,
    cause: Annotated[str | None, typer.Option("--cause", help="Of --tests only those about this cause.")] = None,
    question: Annotated[
        str | None, typer.Option("--question", "-q", help='What you want to know, e.g. "why is TGS so bad".')
    ] = None,
    playbooks: Annotated[
        Path | None,
        typer.Option("--playbooks", envvar="TRACKWALKER_PLAYBOOKS", help="Folder with playbooks of your own."),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the HTML report to this file.")] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say why each hypothesis was ruled out.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 when the verdict is an incident.")] = False,
    log_only: Annotated[
        bool, typer.Option("--log-only", help="Read the log and nothing else: the same as `trackwalker triage`.")
    ] = False,
    log: Annotated[Path | None, typer.Option("--log", help="The log of a job that is in no workspace.")] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics", envvar="TRACKWALKER_METRICS", help="Read the cluster's own store: Prometheus' address."
        ),
    ] = None,
    hosts: Annotated[str | None, typer.Option("--hosts", help="With --metrics: the job's hosts, as n[1-24].")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Of --metrics: epoch seconds or ISO time.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Of --metrics: epoch seconds or ISO time.")] = None,
    auth_file: StoreAuthFile = None,
    tenant: StoreTenant = "",
    ca_file: StoreCaFile = None,
    metric_map: MetricMap = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Find out what went wrong with a job, with the evidence; the job is not changed.

    Example: trackwalker diagnose 8308 --question "why is TGS so bad"

    Exit codes: 0 a verdict, 1 an incident (with --exit-code), 2 nothing to read, 3 a verdict from damaged evidence.
    """
    if as_md + brief + tests + (evidence is not None) > 1 or (as_md and as_json):
        raise UsageError("give one of --brief, --tests, --evidence and --md; --json goes with all but the last")
    if cause is not None and not tests:
        raise UsageError("--cause is for --tests")
    if job is not None and log is not None:
        raise UsageError("name one job: its id, its directory, or --log FILE")
    name = str(log) if log is not None else job or LATEST
    set_once = os.environ.get("TRACKWALKER_METRICS")
    if log_only:
        if saving or brief or tests or evidence or question or html or (metrics and metrics != set_once):
            raise UsageError("--log-only goes with --json and --md: the others need the whole diagnosis")
        return triage([name], as_json=as_json, as_markdown=as_md, workspace=workspace)
    found = log_of(name, workspace)
    with ExitStack() as stack:
        # A store that is said once for all is for jobs that have no recording of their own.
        if metrics and not (found.database and metrics == set_once):
            span = (parse_time(since), parse_time(until))
            access = Access(metrics, auth_file, tenant, ca_file)
            borrowed = stack.enter_context(with_metrics(found, access, hosts, span, load_maps(metric_map)))
            found = borrowed.job
            print(borrowed.says, file=sys.stderr)
        elif not metrics and (hosts or since or until):
            raise UsageError("--hosts, --since and --until are for --metrics URL")
        with waiting():
            diagnosis = standing_diagnosis(engine.diagnose(found, load_playbooks(playbooks)), saved_verdict(found))
    if question is not None:
        diagnosis = replace(diagnosis, verdict=answer(question, diagnosis.verdict))
    # Files first: a reader of the pipe that leaves early must not cost the report.
    if html is not None:
        write_html(diagnosis, found, html)
    if saving:
        path = save(diagnosis, found)
        print(f"report: {path}", file=sys.stderr)
    if brief:
        print_brief(diagnosis, as_json)
    elif tests:
        print_tests(diagnosis.asked.about(cause) if cause else diagnosis.asked, diagnosis.verdict.job.id, as_json)
    elif evidence is not None:
        print_evidence(diagnosis.verdict, evidence, as_json)
    elif as_json:
        print(diagnosis.verdict.to_json())
    elif as_md:
        print(markdown(diagnosis.verdict))
    else:
        render(
            diagnosis.verdict,
            Screen(highlight=False),
            as_named(found.id if position(name) is not None else name, workspace),
            verbose,
        )
    return damaged(diagnosis.damage) or (FOUND if exit_code and diagnosis.verdict.outcome == "incident" else 0)
