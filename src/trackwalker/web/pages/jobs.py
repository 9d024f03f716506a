"""The first page: every job of the workspace, newest first, with what is wrong where something is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, get_args
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from trackwalker.fleet.index import JobIndex
from trackwalker.fleet.rows import Group, JobRow
from trackwalker.report.text import clip, one_line
from trackwalker.web.data.cache import Cache
from trackwalker.web.data.pace import spark_area, spark_path
from trackwalker.web.pages.render import in_thread, json_answer, page, settings_of, workspace_of

SCHEMA = "trackwalker.web.pages.jobs/1"
PAGE = 500  # rows
_GROUPS = {
    "": "All",
    "trouble": "Trouble",
    "running": "Running",
    "waiting": "Waiting",
    "finished": "Finished",
    "cancelled": "Cancelled",
}
_SORTS: Mapping[str, Callable[[JobRow], Any]] = {
    "model": lambda row: row.model,
    "status": lambda row: row.status,
    "nodes": lambda row: -(row.nodes or 0),
    "steps": lambda row: -(row.last_step or 0),
    "tgs": lambda row: -(row.tgs or 0.0),
    "goodput": lambda row: (row.goodput is None, row.goodput or 0.0),
    "lost": lambda row: -(row.lost_gpu_hours or 0.0),
}


@dataclass(frozen=True)
class Wanted:
    """What the address of the page asks for."""

    q: str = ""
    group: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def of(cls, request: Request) -> Wanted:
        """From the query; what is not understood is as if it was not there."""
        given = request.query_params
        number = given.get("page", "1")
        group, sort = given.get("state", ""), given.get("sort", "")
        return cls(
            clip(one_line(given.get("q", "")), 200),
            group if group in get_args(Group) else "",
            sort if sort in _SORTS else "",
            max(int(number), 1) if number.isdecimal() and len(number) < 7 else 1,
        )

    def url(self, **changed: Any) -> str:
        """The address of the same list with something changed."""
        new = replace(self, **{"page": 1, **changed})
        pairs = {"q": new.q, "state": new.group, "sort": new.sort, "page": new.page if new.page > 1 else ""}
        query = urlencode({name: value for name, value in pairs.items() if value})
        return f"/?{query}" if query else "/"


def routes() -> list[BaseRoute]:
    """The list as a page, its rows alone for the page's script, and as JSON."""
    return [Route("/", listed), Route("/jobs/rows", rows), Route("/jobs.json", as_json)]


def index_of(request: Request) -> JobIndex:
    """The index of this server's workspace."""
    found: JobIndex = request.app.state.jobs
    return found


async def listed(request: Request) -> Response:
    """The page; rows that were not read yet are filled in by its script."""
    return await _rendered(request, "jobs.html.j2")


async def rows(request: Request) -> Response:
    """The rows as HTML; 304 as long as nothing changed."""
    tag = _tag(request, (await in_thread(index_of(request).rows))[1])
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    answer = await _rendered(request, "jobs_rows.html.j2")
    answer.headers.update(headers)
    return answer


async def as_json(request: Request) -> Response:
    """The same for programs."""
    context, version = await _context(request)
    tag = _tag(request, version)
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-cache"})
    document = {
        "schema": SCHEMA,
        "workspace": str(workspace_of(request).root),
        "total": context["total"],
        "pending": context["pending"],
        "page": context["wanted"].page,
        "pages": context["pages"],
        "jobs": [row.to_dict() for row in context["rows"]],
    }
    return json_answer(document, headers={"ETag": tag, "Cache-Control": "no-cache"})


async def _rendered(request: Request, template: str) -> Response:
    """Twenty people look at the same list: it is made once for all of them, for as long as no row changes."""
    version = (await in_thread(index_of(request).rows))[1]
    settings = settings_of(request)
    waiting = await in_thread(request.app.state.examiner.waiting) if settings.examine else 0
    kept: Cache[bytes] = request.app.state.rendered
    key, state = (template, str(request.url.query)), (version, waiting, PAGE)
    known = kept.peek(key, state)
    if known is None:
        made = page(request, template, **(await _context(request))[0])
        known = kept.get(key, state, lambda: bytes(made.body))
    return HTMLResponse(known)


async def _context(request: Request) -> tuple[dict[str, Any], int]:
    wanted = Wanted.of(request)
    every, version = await in_thread(index_of(request).rows)
    words = wanted.q.lower().split()
    found = [row for row in every if all(word in row.text for word in words)]
    counts: Counter[str] = Counter(group for row in found for group in row.groups)
    shown = [row for row in found if not wanted.group or wanted.group in row.groups]
    if wanted.sort:
        shown.sort(key=_SORTS[wanted.sort])
    pages = max(-(-len(shown) // PAGE), 1)
    wanted = replace(wanted, page=min(wanted.page, pages))
    context = {
        "wanted": wanted,
        "rows": shown[(wanted.page - 1) * PAGE : wanted.page * PAGE],
        "total": len(every),
        "found": len(shown),
        "pending": sum(row.pending for row in every),
        "pages": pages,
        "groups": [(key, name, counts[key] if key else len(found)) for key, name in _GROUPS.items()],
        "workspace": str(workspace_of(request).root),
        "examining": await in_thread(request.app.state.examiner.waiting) if settings_of(request).examine else 0,
        "spark_path": spark_path,
        "spark_area": spark_area,
    }
    return context, version


def _tag(request: Request, version: int) -> str:
    # The server's own start is part of it: a version counts anew with each.
    what = f"{id(request.app)}-{request.app.state.started}-{version}-{request.url.query}"
    return f'"{sha256(what.encode()).hexdigest()[:24]}"'
