"""Rendering: the templates of this room over those of the reports, and work that must not hold up other requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import anyio.to_thread
import orjson
from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from trackwalker import __version__
from trackwalker.errors import UsageError
from trackwalker.job.causes import cause_name
from trackwalker.job.layout import Job
from trackwalker.report import html, words
from trackwalker.report.ranges import shortened
from trackwalker.report.text import json_visible
from trackwalker.web.data.cache import Cache
from trackwalker.web.data.pace import spark_area, spark_path
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

_MOMENT = re.compile(r"\b(20\d\d-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(?: UTC\b|Z\b)")
_LOOK_S = 0.25  # how often a visitor is looked for while a question takes long
_LONGEST_FORM = 16 << 10
_PACKING = 4  # of gzip: a list of 500 jobs in some milliseconds, to a tenth of its size
NAV = (
    ("Jobs", "/"),
    ("Incidents", "/incidents"),
    ("Fleet", "/fleet"),
    ("Nodes", "/nodes"),
    ("Sweeps", "/sweeps"),
    ("Lab", "/lab"),
    ("Ask", "/ask"),
)


def workspace_of(request: Request) -> WebWorkspace:
    """What this server shows."""
    found: WebWorkspace = request.app.state.workspace
    return found


def settings_of(request: Request) -> Settings:
    """What this server was told."""
    found: Settings = request.app.state.settings
    return found


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Blocking work off the event loop; a visitor who leaves does not have to be waited for."""
    return await anyio.to_thread.run_sync(lambda: work(*args, **kwargs), abandon_on_cancel=True)


async def while_wanted(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of some work, which is cancelled when the visitor goes."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK_S))[0]:
            if await request.is_disconnected():
                raise HTTPException(499)
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that was posted; of a body no more than a form needs is read."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_FORM:
            raise UsageError("that is too long")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


async def job_of(request: Request) -> Job:
    """The job that the address names."""
    return await in_thread(workspace_of(request).job, request.path_params["id"])


def page(request: Request, template: str, status: int = 200, **context: Any) -> Response:
    """A template as an HTML answer."""
    return HTMLResponse(text_of(request, template, **context), status)


def text_of(request: Request, template: str, **context: Any) -> str:
    """A template as text; `request`, `nav`, `version` and `here` are there in every template."""
    made = environment().get_template(template)
    return made.render(request=request, nav=NAV, version=__version__, here=request.url.path, **context)


@dataclass(frozen=True)
class Sheet:
    """An answer as it is sent: plain, packed, and its tag."""

    plain: bytes
    packed: bytes
    tag: str


async def kept(
    request: Request, state: Hashable, make: Callable[[], str | bytes], media_type: str = "text/html"
) -> Response:
    """What many read and what seldom changes: made once for each `state` of what it shows, off the event loop, packed
    once, and not sent again to a reader who has it."""
    sheets: Cache[Sheet] = request.app.state.sheets
    key = (request.url.path, request.url.query)
    sheet = sheets.peek(key, state)
    if sheet is None:
        sheet = await in_thread(sheets.get, key, state, lambda: sheet_of(make(), key))
    return as_sent(request, sheet, media_type)


def as_sent(request: Request, sheet: Sheet, media_type: str) -> Response:
    """An answer for a reader who may have it, and may take it packed."""
    headers = {"ETag": sheet.tag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == sheet.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(sheet.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=media_type)
    return Response(sheet.plain, headers=headers, media_type=media_type)


def sheet_of(made: str | bytes, key: tuple[str, str]) -> Sheet:
    """An answer to be kept; `key` is where it is found."""
    plain = made.encode() if isinstance(made, str) else made
    said = sha256(f"{key}".encode() + plain).hexdigest()[:24]
    # Weak: the packed and the plain form are one sheet.
    return Sheet(plain, gzip.compress(plain, _PACKING, mtime=0), f'W/"{said}"')


def json_answer(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer; numbers that are not numbers become null, and numpy arrays are taken as they are."""
    return Response(json_bytes(document), status, headers, media_type="application/json")


def json_bytes(document: Any) -> bytes:
    """The same as bytes."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def moment(value: float | None, date: bool = True) -> Markup:
    """A moment as <time>: UTC in the page, the viewer's zone by app.js; for templates as `t | moment`."""
    if value is None or not words.is_time(value):
        return Markup('<span class="soft">unknown</span>')
    iso = datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    form = '<time datetime="{}">{} UTC</time>' if date else '<time datetime="{}" data-clock="">{} UTC</time>'
    return Markup(form).format(iso, words.utc(value, date))  # noqa: S704 - one of the two above


def timed(value: str) -> Markup:
    """Text with its UTC moments as <time>, so that the zone of the page is the zone of its sentences too."""
    out, at = Markup(), 0
    for found in _MOMENT.finditer(value):
        iso = f"{found[1]}T{found[2]}Z"
        out += Markup(escape(value[at : found.start()]))  # noqa: S704 - escaped
        out += Markup('<time datetime="{}">{}</time>').format(iso, f"{found[1]} {found[2]} UTC")
        at = found.end()
    return out + Markup(escape(value[at:]))  # noqa: S704 - escaped


def json_island(value: Any) -> Markup:
    """JSON for a <script type="application/json">: nothing in it can end the element or begin another."""
    text = json_visible(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def host_url(host: str) -> str:
    """The address of a host's page; any name, also one with a slash in it."""
    return f"/host?{urlencode({'name': host})}"


def incident_url(job_id: str, *rest: str) -> str:
    """The address of an incident, or of something below it."""
    return "/".join(["/incidents", *(quote(part, safe="") for part in (job_id, *rest))])


def job_url(job_id: str, *rest: str) -> str:
    """The address of a job's page, or of something below it."""
    return "/".join(["/job", *(quote(part, safe="") for part in (job_id, *rest))])


def _counted(count: int, what: str) -> str:
    """`1 GPU`, `1,024 GPUs`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def compile_templates(beginning: str) -> None:
    """Compile the templates of a page with its parts, a fifth of a second that its first visitor does not wait for."""
    for name in environment().list_templates(filter_func=lambda name: name.startswith((beginning, "base.", "parts."))):
        environment().get_template(name)


@cache
def environment() -> Environment:
    """Our templates first, then the report room's: a page can include `timeline.svg.j2`, and a name is taken once."""
    made = html.environment().overlay(
        loader=ChoiceLoader([PackageLoader("trackwalker.web"), PackageLoader("trackwalker.report")])
    )
    # An overlay shares its filters with what it lies over; ours are not the report's business.
    made.filters = {
        **made.filters,
        "moment": moment,
        "timed": timed,
        "shortened": shortened,
        "json_island": json_island,
        "duration": words.duration,
        "change": words.change,
        "confidence": words.confidence,
        "utc_iso": words.utc_iso,
        "number_round": words.amount,
        "counted": _counted,
        "cause_name": cause_name,
        "day": lambda t: words.utc(t)[:10],
    }
    ways = {"job_url": job_url, "host_url": host_url, "incident_url": incident_url}
    made.globals = {**made.globals, **ways, "spark_path": spark_path, "spark_area": spark_area}
    return made
