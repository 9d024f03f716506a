"""The inbox: every job that is in trouble as something to be worked on, with a state, an owner and a note."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, get_args
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from trackwalker.errors import JobNotFoundError, TrackwalkerError, UsageError
from trackwalker.fleet.incidents import Incident, Order, inbox, is_incident, lost_by, markdown, one
from trackwalker.fleet.marks import STATES, Marks
from trackwalker.fleet.rows import JobRow
from trackwalker.fleet.signs import Signs
from trackwalker.fleet.store import folder_for
from trackwalker.job.causes import known as known_causes
from trackwalker.report.text import clip, one_line
from trackwalker.web.pages.jobs import index_of, waiting
from trackwalker.web.pages.render import (
    form_of,
    in_thread,
    json_answer,
    kept,
    page,
    settings_of,
    text_of,
    workspace_of,
)

SCHEMA = "trackwalker.web.pages.incidents/1"
PAGE = 200
DAYS = 30
_RETURNING = 5  # hosts above the list
_STATES = (("open", "Open"), ("acknowledged", "Acknowledged"), ("resolved", "Resolved"), ("all", "All"))
_SPAN_S = DAYS * 86400.0
_OUTCOMES = ("healthy", "incident", "expected", "insufficient-evidence")


@dataclass(frozen=True)
class Wanted:
    """What the address of the inbox asks for."""

    state: str = "open"
    order: str = "cost"
    q: str = ""

    @classmethod
    def of(cls, request: Request) -> Wanted:
        """From the query; what is not understood is as if it was not there."""
        given = request.query_params
        state, order = given.get("state", "open"), given.get("order", "cost")
        return cls(
            state if state in dict(_STATES) else "open",
            order if order in get_args(Order) else "cost",
            clip(one_line(given.get("q", "")), 200),
        )

    def url(self, path: str = "/incidents", **changed: str) -> str:
        """The address of the same inbox with something changed."""
        new, plain = replace(self, **changed), Wanted()
        pairs = {name: getattr(new, name) for name in ("state", "order", "q")}
        query = urlencode({name: value for name, value in pairs.items() if value != getattr(plain, name)})
        return f"{path}?{query}" if query else path


def routes() -> list[BaseRoute]:
    """The inbox, one incident, its Markdown, and the two things that can be done to it."""
    return [
        Route("/incidents", listed),
        Route("/incidents.json", as_json),
        Route("/incidents/{id}.md", shared),
        Route("/incidents/{id}", shown),
        Route("/incidents/{id}/mark", marked, methods=["POST"]),
        Route("/incidents/{id}/wrong", wrong, methods=["POST"]),
    ]


async def listed(request: Request) -> Response:
    """The inbox, what burns most first; made anew when a job, a decision or the watcher's journal changed."""
    state = await in_thread(_state, request)
    return await kept(request, state, lambda: text_of(request, "incidents.html.j2", **_context(request)))


async def as_json(request: Request) -> Response:
    """The same for programs."""
    context = await in_thread(_context, request)
    price = settings_of(request).price
    found = [_plain(each, price) for each in context["incidents"]]
    back = [{"host": each.host, "jobs": each.jobs, "lost_gpu_hours": each.lost} for each in context["returning"]]
    return json_answer({"schema": SCHEMA, "counts": context["counts"], "returning": back, "incidents": found})


def _state(request: Request) -> tuple[Hashable, ...]:
    """The window of time moves with the minute."""
    version, minute = index_of(request).rows()[1], int(time.time() / 60.0)
    return version, _marks(request).state, _signs(request).state, waiting(request), minute


async def shown(request: Request) -> Response:
    """One incident."""
    return await _whole(request)


async def shared(request: Request) -> Response:
    """One incident as Markdown."""
    found = await in_thread(_one, request)
    text = markdown(found, _link(request, found.id), settings_of(request).price)
    return Response(text, media_type="text/markdown; charset=utf-8")


async def marked(request: Request) -> Response:
    """Somebody decided something about it."""
    said = await form_of(request)
    found = await in_thread(_one, request)
    given = {name: said[name] for name in ("state", "owner", "note") if name in said}
    if not given:
        raise UsageError("nothing to change: give state, owner or note")
    mark = await in_thread(lambda: _marks(request).set(found.id, **given))
    if "application/json" in request.headers.get("accept", ""):
        return json_answer({"id": found.id, "state": mark.state, "owner": mark.owner, "note": mark.note})
    back = said.get("back", "")
    here = f"/incidents/{quote(found.id, safe='')}"
    return RedirectResponse(back if re.fullmatch(r"/incidents(\?[\w=&%.+-]*)?", back) else here, 303)


async def wrong(request: Request) -> Response:
    """The verdict is wrong and the truth is known: a case of the lab, with a test that fails until it is learnt."""
    said = await form_of(request)
    try:
        made, refused = await in_thread(_propose, request, said), ""
    except (TrackwalkerError, OSError) as e:
        made, refused = None, str(e)
    return await _whole(request, status=200 if made else 400, proposal=made, refused=refused, said=said)


async def _whole(request: Request, status: int = 200, **more: Any) -> Response:
    found = await in_thread(_one, request)
    settings = settings_of(request)
    context: dict[str, Any] = {
        "each": found,
        "price": settings.price,
        "history": await in_thread(_marks(request).history, found.id),
        "share": markdown(found, _link(request, found.id), settings.price),
        "states": STATES,
        "causes": sorted(known_causes()),
        "outcomes": _OUTCOMES,
        "proposal": None,
        "refused": "",
        "said": {},
    }
    return page(request, "incident.html.j2", status, **{**context, **more})


def _context(request: Request) -> dict[str, Any]:
    wanted, settings = Wanted.of(request), settings_of(request)
    every = index_of(request).rows()[0]
    signs = _signs(request)
    box = inbox(every, signs.by_job(), _marks(request), wanted.state, time.time() - _SPAN_S, wanted.order)  # type: ignore[arg-type]
    found = box.shown
    words = wanted.q.lower().split()
    if words:
        found = [each for each in found if all(word in _text(each) for word in words)]
    return {
        "wanted": wanted,
        "incidents": found[:PAGE],
        "found": len(found),
        "left_out": max(len(found) - PAGE, 0),
        "counts": box.counts,
        "older": len(box.older),
        "older_lost": lost_by(box.older),
        "returning": box.returning[:_RETURNING],
        "often": {each.host: len(each.jobs) for each in box.returning},
        "states": _STATES,
        "days": DAYS,
        "price": settings.price,
        "lost": lost_by(found),
        "unknown": sum(each.lost is None for each in found),
        "burning": sum(each.burning for each in found),
        "refused": signs.refused,
        "pending": sum(row.pending for row in every),
        "examining": waiting(request),
    }


def _text(each: Incident) -> str:
    return f"{each.row.text} {each.mark.owner} {each.mark.note} {each.title}".lower()


def _one(request: Request) -> Incident:
    name = request.path_params["id"]
    index = index_of(request)
    every = index.rows()[0]
    row: JobRow | None = index.row(name)
    signs = _signs(request).by_job()
    if row is None:
        raise JobNotFoundError(f"no job '{clip(one_line(name), 80)}' in this workspace")
    touched = _marks(request).of(row.id).changed
    if not touched and not row.pending and not is_incident(row, signs.get(row.id, ())):
        raise JobNotFoundError(f"nothing is wrong with job {row.id}, as far as is known")
    return one(row, every, signs, _marks(request))


def _propose(request: Request, said: dict[str, str]) -> dict[str, str]:
    ws = workspace_of(request)
    job = ws.job(request.path_params["id"])
    outcome, cause = said.get("outcome", ""), said.get("cause", "")
    if outcome not in _OUTCOMES:
        raise UsageError(f"say what is true: one of {', '.join(_OUTCOMES)}")
    if outcome == "incident" and cause not in known_causes():
        raise UsageError("an incident has a cause: choose one")
    hosts = [host for host in re.split(r"[,\s]+", said.get("hosts", "")) if host][:64]
    roots = [{"cause": cause, "hosts": hosts}] if outcome == "incident" else []
    try:  # a distribution of its own: the server starts without it
        from trackwalker.lab.propose import propose
        from trackwalker.lab.scenario import Truth
    except ModuleNotFoundError:
        raise UsageError("a case of your own needs the lab: pip install trackwalker-lab") from None
    truth = Truth.model_validate({"outcome": outcome, "roots": roots})
    base = settings_of(request).kept or folder_for(ws.root)
    if base is None:
        raise UsageError("there is no folder of yours to write a case to")
    about = clip(one_line(said.get("about", "")), 300)
    family = re.sub(r"[^A-Za-z0-9._-]", "-", job.dir.name if job.dir is not None else job.id)
    made = propose(job, truth, base / "proposals", f"{family}-{int(time.time())}", about)
    return {"case": str(made.case), "test": str(made.test), "said": made.said, "wrong": "; ".join(made.wrong)}


def _marks(request: Request) -> Marks:
    found: Marks = request.app.state.marks
    return found


def _signs(request: Request) -> Signs:
    found: Signs = request.app.state.signs
    return found


def _link(request: Request, name: str) -> str:
    return f"{request.url.scheme}://{request.headers.get('host', '')}/incidents/{quote(name, safe='')}"


def _plain(each: Incident, price: float | None) -> dict[str, Any]:
    return {
        "id": each.id,
        "job": each.row.id,
        "title": each.title,
        "cause": each.row.cause,
        "says": each.says,
        "hosts": each.row.hosts,
        "state": each.mark.state,
        "owner": each.mark.owner,
        "note": each.mark.note,
        "first": each.first,
        "last": each.last,
        "live": each.live,
        "lost_gpu_hours": each.lost,
        "lost_money": each.money(price),
        "burning_gpus": each.burning,
        "alike": [{"job": other.job, "host": other.host} for other in each.alike],
        "signs": [{"kind": sign.kind, "title": sign.title, "since": sign.since} for sign in each.signs],
    }
