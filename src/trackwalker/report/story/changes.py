"""What the run was told differently from the run before it of the same name; settings only, no metrics are opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.compare.config_diff import Change, config_changes
from trackwalker.errors import EvidenceError, NotAJobError
from trackwalker.job.layout import Job
from trackwalker.job.run import load_run
from trackwalker.job.scrub import Scrubber
from trackwalker.logs.scanning.index import index_logs


def reference_for(job: Job, jobs: Sequence[Job]) -> Job | None:
    """The run to compare settings with: the nearest older one of the same name, else the nearest newer one."""
    same = [other for other in jobs if other.name == job.name and other.log is not None]
    at = next((i for i, other in enumerate(same) if other.id == job.id), None)
    if at is None:
        return same[0] if same else None
    rest = same[at + 1 :] or same[:at][::-1]
    return rest[0] if rest else None


def changes_between(reference: Job, job: Job, scrubber: Scrubber) -> list[Change]:
    """What the job was told differently from a reference run, what explains most first; secrets are starred."""
    return [
        replace(c, a=None if c.a is None else scrubber.clean(c.a), b=None if c.b is None else scrubber.clean(c.b))
        for c in config_changes(_bare_case(reference), _bare_case(job))
    ]


def _bare_case(job: Job) -> Case:
    """A case without its metrics: settings stand in the log and in run.json."""
    if job.log is None:
        raise NotAJobError(f"job {job.id} has no log, so its settings are not known")
    log = index_logs(job.log).facts
    try:
        run = load_run(job.run_json)
    except EvidenceError:
        run = None
    hosts = [place.host for place in run.ranks] if run else log.hosts
    return Case(job, log, run, [], None, None, hosts, None, None, live=False)
