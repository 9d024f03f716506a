"""What a report file tells beside the verdict: log excerpts, cost, settings against the run before, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trackwalker.diagnose.config_diff import Change
from trackwalker.diagnose.story import Mark, Story
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.triage import triage as triage_job
from trackwalker.diagnose.verdict import Verdict
from trackwalker.errors import TrackwalkerError
from trackwalker.job import journal
from trackwalker.job.layout import Job
from trackwalker.job.scrub import Scrubber, scrubber_of
from trackwalker.logs.attempts import Attempt
from trackwalker.report.story_changes import changes_between, reference_for
from trackwalker.report.story_cost import Cost, cost_of
from trackwalker.report.story_excerpts import Excerpt, excerpts


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
        changes = changes_between(reference, job, scrubber) if reference is not None else []
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
