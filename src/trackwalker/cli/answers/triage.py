"""`trackwalker triage`: what happened, from the log alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.common.say import Screen, print_json
from trackwalker.cli.common.workspace import jobs_of
from trackwalker.diagnose.compare.reference import Speed
from trackwalker.diagnose.triage import SCHEMA, Triage
from trackwalker.diagnose.triage import triage as triage_job
from trackwalker.errors import JobNotFoundError, NotAJobError, TrackwalkerError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve, several
from trackwalker.job.shorthand import LATEST
from trackwalker.launch.job_state import find_job, standing
from trackwalker.launch.slurm.client import Slurm, slurm_here
from trackwalker.record.accounting import ask, why_no_log
from trackwalker.report import triage as view


# A job that has no log yet, or never got one: its scheduler may know why.
def log_of(name: str, workspace: Path) -> Job:
    """The job; of a Slurm job that is in no workspace, the file that Slurm prints its output into."""
    try:
        return with_a_log(name, workspace)
    except (JobNotFoundError, NotAJobError):
        if not (name.isascii() and name.isdigit()):
            raise
        known = Slurm().state(name) if slurm_here() else None
        places = [Path(known.log)] if known and known.log else []
        for place in (*places, Path(f"slurm-{name}.out")):
            if place.is_file():
                return replace(resolve(str(place), workspace), id=name)
        raise


def with_a_log(name: str, workspace: Path) -> Job:
    """The job; of one without a log, an error that says how it stands."""
    try:
        return resolve(name, workspace)
    except NotAJobError as e:
        try:
            job = find_job(name, workspace)
            seen = standing(job)
        except TrackwalkerError:
            said = why_no_log(Path(name).name.split("-")[0])
            raise NotAJobError(f"{e}; {said}" if said else str(e)) from e
        if job.log is None and seen.state not in ("unknown", "forgotten", "lost"):
            verb = "has written nothing yet" if not seen.ended else "wrote nothing"
            raise NotAJobError(f"job {job.id} {seen.meaning}; it {verb}, so there is no log to read") from e
        said = why_no_log(job.id)
        raise NotAJobError(f"{e}; {said}" if said else str(e)) from e


def triage(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB]...",
            help="Job id, id prefix, log file or job directory; or several files of one job; default: the latest.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every job of the workspace, newest first.")] = False,
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--md", help="Print Markdown instead of text.")] = False,
    reference: Annotated[
        str | None, typer.Option("--reference", help="A job of the same kind, or tokens/s/device, to compare with.")
    ] = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Say what happened to a job, from its log alone, in a second; the job is not changed."""
    if everything and jobs:
        raise UsageError("name one job, or give --all for every job of the workspace")
    console = Screen(highlight=False)
    if not everything:
        name = jobs[0] if jobs else LATEST
        named = several([Path(each) for each in jobs]) if jobs and len(jobs) > 1 else with_a_log(name, workspace)
        found = triage_job(named, reference_speed(reference, workspace) if reference else None)
        if as_json:
            print_json(found.to_dict())
        elif as_markdown:
            print(view.markdown(found), end="")
        else:
            view.render(found, console)
        return 0
    if reference is not None:
        raise UsageError("--reference compares one job: name it instead of --all")
    rows: list[Triage | tuple[str, str]] = []
    jobs_here = jobs_of(workspace, waiting=False)
    answer = ask([j.id for j in jobs_here])  # once for all of them: a scheduler is not to be asked a hundred times
    for each in jobs_here:
        try:
            rows.append(triage_job(each, sacct=answer))
        except TrackwalkerError as e:
            rows.append((each.id, str(e)))
        except OSError as e:
            rows.append((each.id, f"cannot be read: {e.strerror}"))
    if as_json:
        told = [{"job": {"id": r[0]}, "error": r[1]} if isinstance(r, tuple) else r.to_dict() for r in rows]
        print_json({"schema": SCHEMA, "workspace": str(workspace), "jobs": told})
    elif as_markdown:
        print("\n".join(view.markdown(r) for r in rows if isinstance(r, Triage)), end="")
    elif rows:
        view.table(rows, console)
    else:
        console.print(f"no jobs in {workspace}", markup=False)
    return 0


def reference_speed(given: str, workspace: Path) -> Speed:
    """What `--reference` names: a job where there is one of that name, otherwise a number of tokens/s/device."""
    try:
        return triage_job(resolve(given, workspace)).speed
    except JobNotFoundError:
        try:
            tgs = float(given)
        except ValueError:
            tgs = 0.0
        if not 0.0 < tgs < float("inf"):
            raise
        return Speed("as given", tgs, None)
