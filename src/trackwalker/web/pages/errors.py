"""What a visitor sees when something is wrong: one sentence, what to do, never a traceback."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trackwalker.errors import (
    EvidenceError,
    JobNotFoundError,
    MissingToolError,
    NotAJobError,
    RefusedError,
    TrackwalkerError,
    UsageError,
)
from trackwalker.report.text import clip, one_line
from trackwalker.web.pages.render import json_answer, page

_log = logging.getLogger("trackwalker.web")
_STATUS: tuple[tuple[type[TrackwalkerError], int, str], ...] = (
    (JobNotFoundError, 404, "No such job"),
    (RefusedError, 403, "Not shown"),
    (UsageError, 400, "That cannot be asked"),
    (NotAJobError, 422, "Nothing to read"),
    (EvidenceError, 422, "The evidence cannot be read"),
    (MissingToolError, 503, "A program is missing"),
)


async def told(request: Request, error: Exception) -> Response:
    """A known error as a page, or as JSON for a script."""
    for kind, status, title in _STATUS:
        if isinstance(error, kind):
            return answer(request, status, title, str(error))
    return answer(request, 500, "This did not work", str(error))


async def vanished(request: Request, error: Exception) -> Response:
    """A file went away between the look into the folder and the reading of it."""
    name = request.path_params.get("id", "")
    what = f"Job {name}" if name else "What this page shows"
    said = f"{what} was moved or removed while it was being read, or cannot be read by this user: {_plain(error)}."
    return answer(request, 410, "It is gone", said)


async def http(request: Request, error: Exception) -> Response:
    """No such page, and the like."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    title = "No such page" if status == 404 else "Not possible"
    return answer(request, status, title, f"There is nothing at {clip(one_line(request.url.path), 120)}.")


class Mistakes:
    """ASGI middleware for what nobody expected: the server's terminal has the details, the page has one line.

    Starlette's own place for such a handler lies outside of every middleware, so its answers would lack the rules for
    browsers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        began = False

        async def noting(message: Message) -> None:
            nonlocal began
            began = began or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as e:
            if scope["type"] != "http" or began:
                raise
            request = Request(scope)
            _log.error("%s %s", request.method, request.url.path, exc_info=e)
            said = f"{type(e).__name__}; the server's terminal says where."
            await answer(request, 500, "This is a mistake in Trackwalker", said)(scope, receive, send)


def answer(request: Request, status: int, title: str, says: str) -> Response:
    """The error as a page to who asked for one, otherwise as JSON."""
    says = clip(one_line(says), 600)
    if "text/html" in request.headers.get("accept", ""):
        return page(request, "error.html.j2", status, title=title, says=says)
    return json_answer({"error": says, "title": title}, status)


def _plain(error: Exception) -> str:
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else type(error).__name__
