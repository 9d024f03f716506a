"""The web app over one workspace: pages and small JSON answers, read-only."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.errors import TrackwalkerError
from trackwalker.fleet.examine import Examiner
from trackwalker.fleet.index import JobIndex
from trackwalker.fleet.marks import Marks
from trackwalker.fleet.signs import Signs
from trackwalker.web.data.cache import Cache
from trackwalker.web.data.workspace import WebWorkspace, get_ready
from trackwalker.web.logs import log_view
from trackwalker.web.pages import (
    ask,
    compare,
    errors,
    fleet,
    hosts,
    incidents,
    job_page,
    jobs,
    lab,
    nodes,
    report_file,
    runs,
    sweeps,
)
from trackwalker.web.pages.render import Sheet, as_sent, in_thread, sheet_of
from trackwalker.web.security import Guard
from trackwalker.web.settings import Settings

__all__ = ["create_app", "get_ready"]

_STATIC = Path(__file__).with_name("static")
_QUERIES = 4  # PromQL of visitors at once: each may take a core of its Prometheus for fifteen seconds
_SHEETS = 32  # pages that are kept as they are sent, below a megabyte each
_LOOK_S = 20.0  # how often idle databases are looked for

# Each module of pages gives its own `routes()`; the first that matches answers.
_PAGES: tuple[ModuleType, ...] = (
    *(jobs, incidents, fleet, hosts, job_page, compare, runs, nodes),
    *(lab, sweeps, ask, log_view, report_file),
)


def create_app(settings: Settings) -> Starlette:
    """The app; nothing is read from the workspace before somebody asks."""
    workspace = WebWorkspace(settings.workspace, settings.kept)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if settings.examine:
            app.state.examiner.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_close_idle, workspace)
            yield
            tasks.cancel_scope.cancel()
        for ending in (app.state.examiner.close, app.state.jobs.close, workspace.close):
            await anyio.to_thread.run_sync(ending)

    _files()
    routes: list[BaseRoute] = [Route("/static/{name:path}", static)]
    routes += [route for module in _PAGES for route in module.routes()]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=settings.token), Middleware(errors.Mistakes)],
        exception_handlers={
            TrackwalkerError: errors.told,
            OSError: errors.vanished,
            HTTPException: errors.http,
        },
        lifespan=lifespan,
    )
    app.state.workspace, app.state.settings = workspace, settings
    app.state.queries = anyio.CapacityLimiter(_QUERIES)
    app.state.jobs = JobIndex(workspace, settings.kept, workspace.triage)
    workspace.index = app.state.jobs
    app.state.sheets = Cache[Sheet](_SHEETS)
    app.state.marks = Marks(workspace.root, settings.kept)
    app.state.signs = Signs(workspace.root)
    app.state.examiner = Examiner(
        app.state.jobs,
        workspace.examined,
        lambda job, given_up: workspace.diagnosis(job, beside=given_up).verdict,
        busy=lambda: workspace.busy,
    )
    return app


async def _close_idle(workspace: WebWorkspace) -> None:
    while True:
        await anyio.sleep(_LOOK_S)
        await in_thread(workspace.databases.close_idle)


async def static(request: Request) -> Response:
    """A file of the package; a browser keeps it, and asks whether it is still the same."""
    found = _files().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return as_sent(request, *found)


@cache
def _files() -> dict[str, tuple[Sheet, str]]:
    """All of them in memory, each with its kind: a page begins with twenty, and to open them takes long."""
    paths = {str(path.relative_to(_STATIC)): path for path in _STATIC.rglob("*") if path.is_file()}
    kinds = {name: mimetypes.guess_type(name)[0] or "text/plain" for name in paths}
    return {name: (sheet_of(path.read_bytes(), ("static", name)), kinds[name]) for name, path in paths.items()}
