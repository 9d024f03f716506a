"""A running job as it goes: what changed, every few seconds, for as long as somebody looks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from trackwalker.agent.workspace import signature
from trackwalker.errors import TrackwalkerError
from trackwalker.fleet.signs import Sign, Signs
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.pages.render import in_thread, job_of, workspace_of

EVERY_S = 5.0
_SHARE = 0.2  # of a core that the reading of a long log again and again may take
_LONGEST_S = 3600.0  # a page that is left open connects anew


def routes() -> list[BaseRoute]:
    """The stream of one job."""
    return [Route("/job/{id}/live", live)]


async def live(request: Request) -> Response:
    """Server-sent events: how the job stands, and a mark that is another where its evidence is."""
    job = await job_of(request)

    async def told() -> AsyncIterator[bytes]:
        until = time.monotonic() + _LONGEST_S
        while time.monotonic() < until and not await request.is_disconnected():
            began = time.monotonic()
            now = await in_thread(standing, workspace_of(request), job)
            open_now = [sign.title for sign in signs_of(request, job) if sign.resolved is None]
            now["watch"] = open_now[-1] if open_now else ""
            yield b"data: " + orjson.dumps(now) + b"\n\n"
            if not now["live"]:
                return
            await anyio.sleep(max(EVERY_S, (time.monotonic() - began) / _SHARE))

    return StreamingResponse(told(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def signs_of(request: Request, job: Job) -> list[Sign]:
    """What the watcher called about a job, the newest last; nothing without a watcher."""
    found: Signs = request.app.state.signs
    return sorted(found.by_job().get(job.id, []), key=lambda sign: sign.since)


def standing(workspace: WebWorkspace, job: Job) -> dict[str, Any]:
    """How the job stands by its log, and how long ago anything of it was written."""
    mark = hashlib.sha256(repr(signature(job)).encode()).hexdigest()[:16]
    try:
        seen = workspace.triage(job)
    except (TrackwalkerError, OSError):
        return {"status": "unreadable", "last_step": None, "total": None, "age": 0.0, "mark": mark, "live": False}
    return {
        "status": seen.status,
        "last_step": seen.progress.last_step,
        "total": seen.progress.total_steps,
        "age": round(max(0.0, time.time() - _written(job)), 1),
        "mark": mark,
        "live": is_live(job.state) or seen.status in ("running", "initialising"),
    }


def _written(job: Job) -> float:
    """When anything of the job was last written."""
    times = []
    for path in (job.log, job.events, job.progress):
        try:
            times.append(path.stat().st_mtime if path is not None else 0.0)
        except OSError:
            continue
    return max(times, default=0.0) or time.time()
