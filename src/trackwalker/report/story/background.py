"""What a report file tells beside the verdict: log excerpts, cost, settings against the run before, restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.compare.config_diff import Change, config_changes
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.triage import triage as triage_job
from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.story import Mark, Story
from trackwalker.errors import EvidenceError, NotAJobError, TrackwalkerError
from trackwalker.job import journal
from trackwalker.job.layout import Job
from trackwalker.job.run import load_run
from trackwalker.job.scrub import Scrubber, scrubber_of
from trackwalker.logs.attempts import Attempt
from trackwalker.logs.scanning.index import index_logs
from trackwalker.logs.scanning.window import Line, around
from trackwalker.report.story.cost import Cost, cost_of
from trackwalker.report.text import clip, visible

# The lines around what the evidence cites, for a page that leaves the machine with the logs.
_AROUND = 3
_MOST = 40  # excerpts of one page
_LONGEST = 240  # characters of a line
_PLACE = re.compile(r"(?P<file>[^:\0]{1,400}):(?P<line>\d{1,12})")


@dataclass(frozen=True)
class Excerpt:
    """A few lines of one log: number, text, and whether it is the line that is cited."""

    file: str
    rows: tuple[tuple[int, str, bool], ...]


def excerpts(job: Job, verdict: Verdict, scrubber: Scrubber) -> dict[str, Excerpt]:
    """By evidence id; what is cited first comes first when there are too many. A log that is gone has none."""
    cited = [key for part in (verdict.causes, verdict.ruled_out) for item in part for key in item.evidence]
    rank = {key: place for place, key in reversed(list(enumerate(cited)))}
    items = [item for item in verdict.evidence if item.kind == "log"]
    out: dict[str, Excerpt] = {}
    for item in sorted(items, key=lambda item: rank.get(item.id, len(rank))):
        match = _PLACE.fullmatch(item.source)
        path = next(_places(job, match["file"]), None) if match else None
        if match and path is not None and item.id not in out and len(out) < _MOST:
            try:
                lines = around(path, int(match["line"]), _AROUND, _AROUND)
            except EvidenceError:
                continue
            if lines:
                rows = ((number, _shown(line, scrubber), number == int(match["line"])) for number, line in lines)
                out[item.id] = Excerpt(match["file"], tuple(rows))
    return out


def _places(job: Job, name: str) -> Iterator[Path]:
    """The log that a source names: the main one, a part of it, a rank's own, a worker's of Ray."""
    if job.log is not None and Path(name).name == name:
        beside = job.log.with_name(name)
        if name.startswith(job.log.name) and beside.is_file():
            yield beside
    if job.dir is None or ".." in Path(name).parts or name.startswith("/"):
        return
    for path in (job.dir / name, *sorted((job.dir / "ray_logs").glob(f"*/{escape(name)}"))):
        if path.is_file():
            yield path


def _shown(line: Line, scrubber: Scrubber) -> str:
    # Cut behind the scrubbing: half a token has no shape.
    return clip(visible(scrubber.clean(line.raw.decode("utf-8", "replace"))), _LONGEST)


@dataclass(frozen=True)
class Background:
    """All of it is optional: a verdict alone makes a page as well."""

    excerpts: dict[str, Excerpt] = field(default_factory=dict)
    cost: Cost | None = None
    attempts: tuple[Attempt, ...] = ()
    restarts: tuple[Mark, ...] = ()
    reference: str = ""  # the job the settings are compared with
    changes: tuple[Change, ...] = ()
    scrubber: Scrubber = field(default_factory=Scrubber)


def background(job: Job, verdict: Verdict, jobs: Sequence[Job] = (), seen: Triage | None = None) -> Background:
    """Read what is not in the verdict; `jobs` are the workspace's, newest first, `seen` is a triage already made."""
    scrubber = scrubber_of(job.log)
    try:
        seen = seen or triage_job(job)
    except TrackwalkerError:
        seen = None  # a report without its budget is still a report
    reference = reference_for(job, jobs)
    try:
        changes = changes_between(reference, job, scrubber, seen) if reference is not None else []
    except TrackwalkerError:
        reference, changes = None, []
    return Background(
        excerpts=excerpts(job, verdict, scrubber),
        cost=cost_of(seen.goodput, verdict) if seen is not None else None,
        attempts=tuple(seen.attempts) if seen is not None else (),
        restarts=tuple(restarts_of(job)),
        reference=reference.label if reference is not None else "",
        changes=tuple(changes),
        scrubber=scrubber,
    )


def restarts_of(job: Job) -> list[Mark]:
    """When a run began again; its first beginning is none."""
    events = journal.read(job.events).items if job.events else []
    times = [float(e["t"]) for e in events if e.get("kind") == "attempt-begin" and isinstance(e.get("t"), int | float)]
    return [Mark(t, "restart", f"attempt {n} begins") for n, t in enumerate(sorted(times)[1:], 2)]


def with_restarts(story: Story, more: Background) -> Story:
    """The story with the moments at which the run began again."""
    if not more.restarts:
        return story
    return replace(story, marks=tuple(sorted([*story.marks, *more.restarts], key=lambda m: (m.time, m.kind))))


def without_secrets(verdict: Verdict, more: Background) -> Verdict:
    """The verdict with the secrets starred that a quoted line may hold."""
    clean = [item.model_copy(update={"says": more.scrubber.clean(item.says)}) for item in verdict.evidence]
    return verdict.model_copy(update={"evidence": clean})


def reference_for(job: Job, jobs: Sequence[Job]) -> Job | None:
    """The run to compare settings with: the nearest older one of the same name, else the nearest newer one."""
    same = [other for other in jobs if other.name == job.name and other.log is not None]
    at = next((i for i, other in enumerate(same) if other.id == job.id), None)
    if at is None:
        return same[0] if same else None
    rest = same[at + 1 :] or same[:at][::-1]
    return rest[0] if rest else None


def changes_between(reference: Job, job: Job, scrubber: Scrubber, seen: Triage | None = None) -> list[Change]:
    """What the job was told differently from a reference run, what explains most first; secrets are starred.

    `seen` is a triage of the job that was made already.
    """
    return [
        replace(c, a=None if c.a is None else scrubber.clean(c.a), b=None if c.b is None else scrubber.clean(c.b))
        for c in config_changes(_bare_case(reference), _bare_case(job, seen))
    ]


def _bare_case(job: Job, seen: Triage | None = None) -> Case:
    """A case without its metrics: settings stand in the log and in run.json."""
    if job.log is None:
        raise NotAJobError(f"job {job.id} has no log, so its settings are not known")
    log = seen.record.facts if seen is not None else index_logs(job.log).facts
    try:
        run = load_run(job.run_json)
    except EvidenceError:
        run = None
    hosts = [place.host for place in run.ranks] if run else log.hosts
    return Case(job, log, run, [], None, None, hosts, None, None, live=False)
