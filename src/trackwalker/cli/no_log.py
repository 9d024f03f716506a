"""A job that has no log yet, or never got one: its scheduler may know why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trackwalker.errors import JobNotFoundError, NotAJobError, TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.launch.slurm.client import Slurm, slurm_here
from trackwalker.launch.standing import find_job, standing
from trackwalker.record.accounting import why_no_log


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
