"""A job that has no log yet, or never got one: its scheduler may know why."""

from __future__ import annotations

from pathlib import Path

from trackwalker.errors import NotAJobError, TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.launch.standing import find_job, standing
from trackwalker.record.accounting import why_no_log


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
