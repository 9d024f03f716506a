"""The job page: what is wrong, where, what now; painted at once, completed as the answers come in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.diagnose.compare.config_diff import Change
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Verdict
from trackwalker.fleet.incidents import is_incident
from trackwalker.fleet.marks import Mark
from trackwalker.job.layout import Job
from trackwalker.report.story.background import reference_for
from trackwalker.web.data import job_page_charts, live
from trackwalker.web.data.job_data import cost_view, events_view, header_view, run_view, triage_view, verdict_view
from trackwalker.web.data.job_page_work import work_of
from trackwalker.web.data.workspace import WebWorkspace, is_long
from trackwalker.web.pages import job_page_perf
from trackwalker.web.pages.jobs import index_of
from trackwalker.web.pages.render import environment, in_thread, job_of, json_answer, page, settings_of, workspace_of

_FIRST_PAINT_S = 0.4  # what the log may take before the page is sent without it
_PATIENCE_S = 8.0  # one wait of the page's script for the verdict
_OTHERS = 60  # jobs to choose a reference run from
_CHANGES = 300
_SIGNS = 5  # of the watcher, the newest


def routes() -> list[BaseRoute]:
    """The page, its parts, its charts' numbers, and the performance page."""
    return [
        Route("/job/{id}", job_page),
        Route("/job/{id}/verdict", verdict),
        Route("/job/{id}/verdict.json", verdict_json),
        *(Route(f"/job/{{id}}/{panel.part}", panel.answer) for panel in PANELS),
        *job_page_charts.routes(),
        *job_page_perf.routes(),
        *live.routes(),
    ]


async def job_page(request: Request) -> Response:
    """The page with what is known at once: the verdict made here or in the background, the saved one, or the log's."""
    job = await job_of(request)
    work, workspace = work_of(request), workspace_of(request)
    known = await in_thread(work.known, job)
    before = None if known is not None else await in_thread(workspace.verdict, job)
    seen = await in_thread(workspace.known_triage, job)
    if seen is None and not await in_thread(is_long, job):
        seen = await _triage(workspace, job, _FIRST_PAINT_S)
    verdict, complete = (known.verdict, True) if known is not None else (before, False)
    return await in_thread(_shown, request, "job.html.j2", job, verdict, seen, complete)


async def verdict(request: Request) -> Response:
    """The verdict's parts of the page, or (202) how far its making is."""
    job = await job_of(request)
    work, workspace = work_of(request), workspace_of(request)
    if job.log is None:
        return json_answer({"progress": "", "wait": 0, "error": "The job has written no log yet."}, 202)
    found = await work.diagnosis(job, _patience(request))
    if found is None:
        return json_answer(await _so_far(request, job), 202)
    seen = await in_thread(workspace.triage, job)
    return await in_thread(_shown, request, "job_verdict_parts.html.j2", job, found.verdict, seen, True)


def _patience(request: Request) -> float:
    """A page that shows nothing yet wants to hear soon what the log says."""
    asked = request.query_params
    return 0.3 if asked.get("first") == "missing" else _PATIENCE_S if asked.get("wait") else 0.05


async def _so_far(request: Request, job: Job) -> dict[str, Any]:
    """How far the diagnosis is; with the first screen from the log alone, for a page that was sent without it."""
    seconds = work_of(request).seconds(job) or 0.0
    answer: dict[str, Any] = {"progress": _progress(job, seconds), "seconds": seconds, "wait": 1}
    seen = await in_thread(workspace_of(request).known_triage, job)
    if seen is not None and request.query_params.get("first") == "missing":
        context = _context(request, job, None, seen)
        answer["parts"] = (
            environment().get_template("job_verdict_parts.html.j2").render(**context, complete=False, saved=False)
        )
    return answer


async def verdict_json(request: Request) -> Response:
    """The verdict as `diagnose --json` prints it."""
    job = await job_of(request)
    found = await in_thread(workspace_of(request).diagnosis, job)
    return Response(found.verdict.to_json(), media_type="application/json")


async def events(request: Request) -> Response:
    """The journal of the run, and what its log says happened."""
    job = await job_of(request)
    seen = await _triage(workspace_of(request), job, 60.0)
    found = await in_thread(events_view, job)
    first = triage_view(job, seen) if seen is not None else None
    return page(request, "job_events.html.j2", job=job, events=found, first=first, seen=seen)


async def run(request: Request) -> Response:
    """run.json without its secrets."""
    job = await job_of(request)
    scrubber = await in_thread(workspace_of(request).agent.scrubber, job)
    return page(request, "job_run.html.j2", job=job, run=await in_thread(run_view, job, scrubber))


async def config(request: Request) -> Response:
    """Settings against a reference run: the one that is named, else the nearest older run of the same name."""
    job = await job_of(request)
    workspace = workspace_of(request)
    jobs = await in_thread(workspace.jobs)
    named = request.query_params.get("ref", "")
    reference = await in_thread(workspace.job, named) if named else reference_for(job, jobs)
    changes: list[Change] = []
    if reference is not None and reference.id != job.id:
        changes = await in_thread(workspace.changes, reference, job)
    others = [other for other in jobs if other.id != job.id and other.log is not None]
    others.sort(key=lambda other: other.name != job.name)
    return page(
        request,
        "job_config.html.j2",
        job=job,
        reference=reference,
        changes=changes[:_CHANGES],
        more=max(0, len(changes) - _CHANGES),
        others=others[:_OTHERS],
    )


def _shown(
    request: Request, template: str, job: Job, found: Verdict | None, seen: Triage | None, complete: bool
) -> Response:
    """Off the event loop: a verdict of a thousand hosts is long."""
    context = _context(request, job, found, seen)
    return page(request, template, **context, complete=complete, saved=found is not None and not complete)


class Panel(NamedTuple):
    """A card of the page that the browser asks for when it comes into view."""

    part: str  # its address below the job's
    title: str
    waiting: str  # what stands there until the answer comes
    answer: Callable[[Request], Awaitable[Response]]
    anchor: str = ""  # where it has another name on the page

    @property
    def id(self) -> str:
        """Its anchor on the page."""
        return self.anchor or self.part


# A new panel is a function above that answers with a template, and a row here.
PANELS = (
    Panel("events", "Events", "Reading the journal", events),
    Panel("config", "Settings against another run", "Reading both logs", config, anchor="settings"),
    Panel("run", "Record of the run", "Reading run.json", run, anchor="record"),
)


def _context(request: Request, job: Job, found: Verdict | None, seen: Triage | None) -> dict[str, Any]:
    price = settings_of(request).price
    return {
        "job": job,
        "head": header_view(job, seen, found),
        "told": verdict_view(job, found, seen) if found is not None else None,
        "first": triage_view(job, seen) if seen is not None else None,
        "cost": cost_view(seen, found, price) if seen is not None else None,
        "recorded": job.database is not None,
        "panels": PANELS,
        "signs": live.signs_of(request, job)[-_SIGNS:],
        "incident": _incident(request, job),
    }


def _incident(request: Request, job: Job) -> Mark | None:
    """How the job's incident stands with the people; None where it has none."""
    row = index_of(request).row(job.id)
    if row is None or not is_incident(row, live.signs_of(request, job)):
        return None
    found: Mark = request.app.state.marks.of(job.id)
    return found


async def _triage(workspace: WebWorkspace, job: Job, seconds: float) -> Triage | None:
    """What the log says, if that takes no longer; the reading goes on and is there for the next."""
    if job.log is None:
        return None
    with anyio.move_on_after(seconds):
        return await in_thread(workspace.triage, job)
    return None


def _progress(job: Job, seconds: float) -> str:
    if seconds < 1.5:
        return "Reading the log"
    where = " and its metrics" if job.database is not None else ""
    return f"Reading the log{where}, then testing every known cause: {seconds:.0f} s so far"
