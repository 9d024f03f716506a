"""The first page: every job of the workspace, newest first, with what is wrong where something is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, get_args
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.fleet.index import JobIndex
from trackwalker.fleet.rows import Group, JobRow
from trackwalker.report.text import clip, one_line
from trackwalker.web.pages.render import environment, in_thread, json_bytes, kept, settings_of, text_of, workspace_of

SCHEMA = "trackwalker.web.pages.jobs/1"
PAGE = 500  # rows
_LINES = 4 * PAGE  # kept as HTML, a kilobyte each
_GROUPS = {
    "": "All",
    "trouble": "Trouble",
    "running": "Running",
    "waiting": "Waiting",
    "finished": "Completed",
    "cancelled": "Cancelled",
}
_SORTS: Mapping[str, Callable[[JobRow], Any]] = {
    "model": lambda row: row.model,
    "status": lambda row: row.status,
    "nodes": lambda row: -(row.nodes or 0),
    "steps": lambda row: -(row.last_step or 0),
    "tgs": lambda row: -(row.tgs or 0.0),
    "goodput": lambda row: (row.goodput is None, row.start_up is not None, row.goodput or 0.0),
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
    return await _kept(request, "jobs.html.j2")


async def rows(request: Request) -> Response:
    """The rows as HTML; 304 as long as nothing changed."""
    return await _kept(request, "jobs_rows.html.j2")


async def as_json(request: Request) -> Response:
    """The same for programs."""
    return await kept(request, await _state(request), lambda: json_bytes(_document(request)), "application/json")


async def _kept(request: Request, template: str) -> Response:
    return await kept(request, await _state(request), lambda: text_of(request, template, **_context(request)))


async def _state(request: Request) -> tuple[int, int, int]:
    """What the list is made of; as long as it stays, twenty readers are one."""
    version = (await in_thread(index_of(request).rows))[1]
    return version, await in_thread(waiting, request), PAGE


def waiting(request: Request) -> int:
    """How many jobs wait for their verdict."""
    return int(request.app.state.examiner.waiting()) if settings_of(request).examine else 0


@lru_cache(_LINES)
def line(row: JobRow) -> Markup:
    """One row as HTML: of a long list one or two change at a time."""
    macros: Any = environment().get_template("job_macros.html.j2").module
    return Markup(macros.job_line(row))  # noqa: S704 - made of a template


def _document(request: Request) -> dict[str, Any]:
    context = _context(request)
    return {
        "schema": SCHEMA,
        "workspace": str(workspace_of(request).root),
        "total": context["total"],
        "pending": context["pending"],
        "page": context["wanted"].page,
        "pages": context["pages"],
        "jobs": [row.to_dict() for row in context["rows"]],
    }


def _context(request: Request) -> dict[str, Any]:
    wanted = Wanted.of(request)
    every = index_of(request).rows()[0]
    words = wanted.q.lower().split()
    found = [row for row in every if all(word in row.text for word in words)] if words else every
    counts: Counter[str] = Counter(group for row in found for group in row.groups)
    shown = [row for row in found if not wanted.group or wanted.group in row.groups]
    if wanted.sort:
        shown.sort(key=_SORTS[wanted.sort])
    pages = max(-(-len(shown) // PAGE), 1)
    wanted = replace(wanted, page=min(wanted.page, pages))
    return {
        "wanted": wanted,
        "rows": shown[(wanted.page - 1) * PAGE : wanted.page * PAGE],
        "line": line,
        "total": len(every),
        "found": len(shown),
        "pending": sum(row.pending for row in every),
        "pages": pages,
        "groups": [(key, name, counts[key] if key else len(found)) for key, name in _GROUPS.items()],
        "twice": sum(len(row.groups) > 1 for row in found),
        "workspace": str(workspace_of(request).root),
        "examining": waiting(request),
    }
