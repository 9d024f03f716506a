"""The job page's story as one file for a ticket: `/job/{id}/report.html`, shown as it is or offered for download."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from trackwalker.report.html import content_policy, render_html
from trackwalker.report.story.background import background
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.pages.render import in_thread, workspace_of

_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def routes() -> list[Route]:
    """The report file."""
    return [Route("/job/{id}/report.html", _report)]


async def _report(request: Request) -> Response:
    name, text = await in_thread(_made, workspace_of(request), request.path_params["id"])
    headers = {"Content-Security-Policy": f"{content_policy()}; frame-ancestors 'none'"}
    if request.query_params.get("download") == "1":
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return HTMLResponse(text, headers=headers)


def _made(ws: WebWorkspace, name: str) -> tuple[str, str]:
    """A file name and the page; the verdict is made when nobody has asked for it yet."""
    job = ws.job(name)
    found = ws.diagnosis(job)
    more = background(job, found.verdict, ws.jobs(), ws.triage(job))
    plain = _ODD.sub("-", f"trackwalker-{job.label}")[:120].strip("-.")
    return f"{plain}.html", render_html(found.verdict, found.story, more)
