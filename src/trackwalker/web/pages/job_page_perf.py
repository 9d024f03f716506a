"""The performance page of a job; its script and style are files of this server: the content policy allows no other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from trackwalker.agent.workspace import signature
from trackwalker.errors import EvidenceError
from trackwalker.job.layout import Job
from trackwalker.perf.analysis.report import NAME, Options, analyse, load_report
from trackwalker.perf.analysis.result import PerfReport
from trackwalker.perf.analysis.step_lanes import step_lanes
from trackwalker.report.perf.page import Assets, page_script, page_style, perf_page
from trackwalker.web.data.job_page_work import work_of
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.pages.render import in_thread, job_of, job_url, page, settings_of, workspace_of

_PATIENCE_S = 2.0


def routes() -> list[BaseRoute]:
    """The page and what it loads."""
    return [Route("/job/{id}/perf", perf), Route("/perf.css", style), Route("/perf.js", script)]


async def perf(request: Request) -> Response:
    """The page; while traces are still being read, a short one that loads itself again."""
    workspace, work = workspace_of(request), work_of(request)
    job = await job_of(request)
    price = settings_of(request).price
    asked = asyncio.create_task(in_thread(work.pages.get, job.id, signature(job), lambda: _page(workspace, job, price)))
    done, _ = await asyncio.wait({asked}, timeout=_PATIENCE_S)
    if done:
        return HTMLResponse(asked.result())
    asked.add_done_callback(lambda task: task.cancelled() or task.exception())  # the next look tells of an error
    answer = page(request, "job_perf_wait.html.j2", job=job)
    answer.headers["Refresh"] = f"{_PATIENCE_S:.0f}"
    return answer


def _page(workspace: WebWorkspace, job: Job, price: float | None) -> str:
    report = _report(workspace, job, price)
    assets = Assets("/perf.css", "/perf.js", job_url(job.id))
    return perf_page(report, step_lanes(report.trace) if report.trace is not None else None, assets)


def _report(workspace: WebWorkspace, job: Job, price: float | None) -> PerfReport:
    """The saved report where it is newer than the log, else a new one."""
    saved = job.dir / NAME if job.dir is not None else None
    try:
        if saved is not None and workspace.agent.inside(saved) and _as_new_as_log(saved, job):
            return load_report(saved)
    except (OSError, EvidenceError):
        pass  # none, or of another version
    return analyse(job, Options(price=price))


def _as_new_as_log(saved: Path, job: Job) -> bool:
    return job.log is None or saved.stat().st_mtime >= job.log.stat().st_mtime


async def style(request: Request) -> Response:
    """The page's style."""
    return Response(page_style(), media_type="text/css", headers={"Cache-Control": "no-cache"})


async def script(request: Request) -> Response:
    """The page's script."""
    return Response(page_script(), media_type="text/javascript", headers={"Cache-Control": "no-cache"})
