"""`trackwalker logs`: the end of a job's log, of all ranks or of one, and what comes next."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from typing import Annotated, BinaryIO

import typer

from trackwalker.agent import log_lines
from trackwalker.agent.log_lines import Wanted, find_lines, of_rank, opened
from trackwalker.agent.standing_now import standing_now
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, JobName, Workspace
from trackwalker.cli.common.say import say, say_raw
from trackwalker.cli.jobs.status import sentence
from trackwalker.diagnose.triage import triage
from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.journal import open_at_last
from trackwalker.job.layout import Job
from trackwalker.job.shorthand import LATEST
from trackwalker.launch.job_state import find_job, pod_logs
from trackwalker.record.line_clock import LineClock
from trackwalker.report.text import json_visible, visible
from trackwalker.telemetry.query import parse_time

SCHEMA = "trackwalker.logs/1"
NO_LOG = 1
_LOOK_S = 0.3
_ASK_S = 5.0  # between two questions to the scheduler
Keep = re.Pattern[bytes]  # how the lines of a rank begin, where the file holds those of others, too


def search(job: Job, rank: int | None, wanted: Wanted, most: int, newest: bool, as_json: bool) -> int:
    """Print the lines that fit, with their numbers, and how many more there are; `most` of -1: all."""
    path, label = of_rank(job, rank)
    if path is None or not path.is_file():
        raise EvidenceError(f"{job.label} has no log yet")
    limit = None if most < 0 else most
    with opened(path) as data:
        lines = find_lines(data, 0, 1, replace(wanted, label=label), lambda: LineClock(triage(job).record.timeline))
        if newest:
            every = list(lines)
            shown, more = every[::-1][:limit], len(every) - min(len(every), limit if limit is not None else len(every))
        else:
            shown = log_lines.oldest(lines, limit if limit is not None else sys.maxsize)
            more = sum(1 for _ in islice(lines, 1_000_000))
    rows = [(line.number, line.raw.decode("utf-8", "replace").rstrip("\n")) for line in shown]
    if as_json:
        held = [{"line": number, "text": text} for number, text in rows]
        document = {"schema": SCHEMA, "id": job.id, "log": str(path), "rank": rank, "lines": held, "more": more}
        print(json_visible(json.dumps(document, indent=1)))
        return 0
    for number, text in rows:
        print(f"{number}: {visible(text)}")
    if more:
        print(f"{more} more lines fit: give -n, or ask for less", file=sys.stderr)
    return 0


def logs(
    job: JobName = LATEST,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Stay until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank, with times.")] = None,
    lines: Annotated[int, typer.Option("-n", "--lines", min=-1, help="Last lines to begin with; -1: all.")] = 100,
    first: Annotated[int | None, typer.Option("--from-line", min=1, help="First line of a range.")] = None,
    last: Annotated[int | None, typer.Option("--to-line", min=1, help="Last line of a range.")] = None,
    contains: Annotated[str, typer.Option("--contains", help="Only lines with this text, in any case.")] = "",
    exclude: Annotated[str, typer.Option("--exclude", help="Not the lines with this text.")] = "",
    since: Annotated[str | None, typer.Option("--since", help="Only lines since then: UTC, ISO or epoch.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only lines until then.")] = None,
    newest: Annotated[bool, typer.Option("--newest-first", help="The last lines first.")] = False,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Print the end of a job's log, and with -f what it writes from now on; the job is not changed.

    With a range of lines, a text or times, the first -n lines that fit are printed with their numbers. A line without
    a time of its own has that of the step before it.

    Where the log of a Kubernetes job is on a claim that this machine does not mount, kubectl shows what its pods say.
    Exit codes: 0 there is a log, 1 there is none yet, 2 no such job.
    """
    if follow and as_json:
        raise UsageError("--json prints one object: leave out --follow")
    found = find_job(job, workspace)
    if contains or exclude or newest or any(each is not None for each in (first, last, since, until)):
        if follow:
            raise UsageError("--follow shows what comes: leave out ranges, texts and times")
        wanted = Wanted(first, last, contains, exclude, parse_time(since), parse_time(until))
        return search(found, rank, wanted, lines, newest, as_json)
    path, keep = of_rank(found, rank)
    while path is None:
        seen = standing_now(found)
        if rank is None and not as_json and (argv := pod_logs(found, seen, follow, lines)):
            return subprocess.run(argv, check=False).returncode
        if not follow or seen.ended or seen.stuck:
            say(f"{sentence(found, seen)}; it has no log", file=sys.stderr)
            return NO_LOG
        time.sleep(1.0)
        found = find_job(job, workspace)
        path, keep = of_rank(found, rank)
    with open_at_last(path, lines if keep is None else -1) as file:
        begin = _read(file, keep)
        begin = begin if keep is None or lines < 0 else begin[len(begin) - min(lines, len(begin)) :]
        if as_json:
            text = [line.decode("utf-8", "replace").rstrip("\n") for line in begin]
            print(
                json.dumps({"schema": SCHEMA, "id": found.id, "log": str(path), "rank": rank, "lines": text}, indent=1)
            )
            return 0
        say_raw(begin)
        if follow:
            _follow(found, file, keep)
    return 0


def _follow(job: Job, file: BinaryIO, keep: Keep | None) -> None:
    asked = time.monotonic() - _ASK_S  # a job that is over is not waited for
    while True:
        say_raw(_read(file, keep))
        if time.monotonic() - asked >= _ASK_S:
            asked = time.monotonic()
            if standing_now(job).ended:
                say_raw(_read(file, keep))  # what it wrote since we looked
                return
        time.sleep(_LOOK_S)


def _read(file: BinaryIO, keep: Keep | None) -> list[bytes]:
    return [line for line in file if keep is None or keep.match(line)]
