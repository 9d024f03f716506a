"""`trackwalker files` and `trackwalker rank-tails`: the job's own small files, and the last words of every rank."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from trackwalker.agent.answers import ranges
from trackwalker.agent.job_files import check_readable, small_files
from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, JobName, Workspace
from trackwalker.diagnose.triage import triage
from trackwalker.diagnose.views.tails import SCHEMA as TAILS_SCHEMA
from trackwalker.diagnose.views.tails import tails_of
from trackwalker.errors import EvidenceError, RefusedError
from trackwalker.job.resolve import resolve
from trackwalker.job.scrub import scrubber_of
from trackwalker.job.shorthand import LATEST
from trackwalker.report.text import clip, json_visible, visible

SCHEMA = "trackwalker.files/1"
_JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Job id, id prefix, log file or job directory.")]


def files(
    job: _JobArgument,
    name: Annotated[str | None, typer.Argument(metavar="FILE", help="One of the listed; without it, the list.")] = None,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """List a job's own small files (logs of exporters, recorder, agent), or print one without its secrets.

    Exit codes: 0 listed or printed, 2 no such file.
    """
    found = resolve(job, workspace)
    if found.dir is None:
        raise EvidenceError(f"{found.label} has no directory: there is only its log")
    if name is None:
        rows = sorted(small_files(found))
        if as_json:
            held = [{"file": file, "bytes": size} for file, size in rows]
            print(json_visible(json.dumps({"schema": SCHEMA, "id": found.id, "files": held}, indent=1)))
        else:
            print("\n".join(f"{size:>9}  {visible(file)}" for file, size in rows) or "no small files")
        return
    path = found.dir / name
    if not path.resolve().is_relative_to(found.dir.resolve()) or path.is_symlink():
        raise RefusedError(f"'{clip(name, 80)}' leaves the job's directory")
    if not path.is_file():
        raise EvidenceError(f"no file '{clip(name, 80)}' in {found.label}: 'files' without a name lists them")
    check_readable(found, path)
    text = scrubber_of(found.log).clean(path.read_bytes().decode("utf-8", "replace"))
    if as_json:
        document = {"schema": SCHEMA, "id": found.id, "file": name, "lines": text.splitlines()}
        print(json_visible(json.dumps(document, indent=1)))
    else:
        print("\n".join(visible(line) for line in text.splitlines()))


def rank_tails(job: JobName = LATEST, as_json: AsJson = False, workspace: Workspace = DEFAULT_WORKSPACE) -> None:
    """Print the last meaningful line of every rank, those alike together, the smallest group first.

    Exit codes: 0 printed, 2 nothing to read.
    """
    found = resolve(job, workspace)
    seen = tails_of(found, triage(found).record.hosts)
    scrubber = scrubber_of(found.log)
    if as_json:
        groups = [{**tail.to_dict(), "text": scrubber.clean(tail.text)} for tail in seen.groups]
        document = {
            "schema": TAILS_SCHEMA,
            "id": found.id,
            "ranks": seen.ranks,
            "silent": seen.silent,
            "groups": groups,
        }
        print(json_visible(json.dumps({**document, "says": seen.says}, indent=1)))
        return
    for tail in seen.groups:
        who = f" ({tail.host})" if tail.host else ""
        place = f"{tail.file}:{tail.line}" if tail.line is not None else tail.file
        print(f"rank {ranges(tail.ranks)}{who}  {visible(clip(scrubber.clean(tail.text), 300))}  [{place}]")
    if seen.silent:
        print(f"rank {ranges(seen.silent)}  said nothing")
    if seen.says:
        print(seen.says)
