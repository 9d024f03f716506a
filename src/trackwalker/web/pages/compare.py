"""Two jobs side by side: by how much they differ, how sure that is, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from trackwalker.diagnose.compare.compare import Comparison
from trackwalker.diagnose.compare.deltas import Delta
from trackwalker.errors import JobNotFoundError, TrackwalkerError
from trackwalker.fleet.rows import JobRow, of_error, of_triage
from trackwalker.fleet.source import last_good
from trackwalker.job.layout import Job
from trackwalker.report import view, words
from trackwalker.report.compare import tables
from trackwalker.report.text import clip, one_line
from trackwalker.web.data.job_data import evidence_links
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.pages.jobs import index_of
from trackwalker.web.pages.render import in_thread, page, workspace_of

LAST_GOOD = "last-good"  # in the place of a job's id
_HALF = 56.0  # of the small interval pictures, in pixels


@dataclass(frozen=True)
class Interval:
    """A difference as a small picture: zero in the middle, what could matter as a band, the interval as a bar."""

    low: float | None
    high: float | None
    at: float
    floor: float
    matters: bool


def routes() -> list[BaseRoute]:
    """The page, and its slow part alone."""
    return [Route("/compare", compared), Route("/compare/result", result)]


async def compared(request: Request) -> Response:
    """The page at once, with what the logs say; the comparison follows, unless it is known."""
    given = request.query_params
    ticked = given.getlist("job")
    if len(ticked) > 2:
        return RedirectResponse(f"/runs?{urlencode([('job', name) for name in ticked])}", 303)
    if len(ticked) == 2:
        older, newer = await in_thread(_by_age, request, ticked[0], ticked[1])
        return RedirectResponse(f"/compare?{urlencode({'a': older, 'b': newer})}", 303)
    a, b = given.get("a", "") or (ticked[0] if ticked else ""), given.get("b", "")
    if not a or not b:
        names = [row.id for row in (await in_thread(index_of(request).rows))[0][:500]]
        return page(request, "compare_ask.html.j2", a=clip(one_line(a), 80), b=clip(one_line(b), 80), names=names)
    ws = workspace_of(request)
    if a == LAST_GOOD:
        baseline = await in_thread(_last_good, request, b)
        return RedirectResponse(f"/compare?{urlencode({'a': baseline, 'b': b})}", 303)
    wait = given.get("wait") == "1"
    context = await in_thread(_first, ws, a, b, wait)
    return page(request, "compare.html.j2", **context)


async def result(request: Request) -> Response:
    """The comparison as a piece of the page; seconds, where nobody asked before."""
    ws, given = workspace_of(request), request.query_params
    context = await in_thread(_whole, ws, given.get("a", ""), given.get("b", ""))
    return page(request, "compare_result.html.j2", **context)


def _last_good(request: Request, name: str) -> str:
    """The last good run of the same model before a job."""
    every = index_of(request).rows()[0]
    job = workspace_of(request).job(name)
    own = next((row for row in every if row.id == job.id), None)
    found = last_good(own, every) if own is not None else None
    if found is None:
        raise JobNotFoundError(f"no good run of the model of job {job.id} was before it: name one to compare with")
    return found.id


def _by_age(request: Request, one: str, two: str) -> tuple[str, str]:
    """The older of two ticked jobs is the baseline."""
    order = {row.id: place for place, row in enumerate(index_of(request).rows()[0])}
    return (one, two) if order.get(one, 0) >= order.get(two, 0) else (two, one)


def _first(ws: WebWorkspace, a: str, b: str, wait: bool) -> dict[str, Any]:
    one, two = ws.job(a), ws.job(b)
    known = ws.comparison(one, two) if wait else ws.known_comparison(one, two)
    query = urlencode({"a": one.id, "b": two.id})
    return {
        "a": _row(ws, one),
        "b": _row(ws, two),
        "fill": f"/compare/result?{query}",
        "wait": f"/compare?{query}&wait=1",
        "over": f"/runs?{urlencode([('job', two.id), ('job', one.id)])}",
        "swap": f"/compare?{urlencode({'a': two.id, 'b': one.id})}",
        "found": _shown(known, one, two) if known is not None else None,
    }


def _whole(ws: WebWorkspace, a: str, b: str) -> dict[str, Any]:
    one, two = ws.job(a), ws.job(b)
    return {"found": _shown(ws.comparison(one, two), one, two)}


def _row(ws: WebWorkspace, job: Job) -> JobRow:
    try:
        return of_triage(ws.triage(job), ws.verdict(job))
    except TrackwalkerError as e:
        return of_error(job, str(e))


def _shown(found: Comparison, a: Job, b: Job) -> dict[str, Any]:
    """The comparison as its template reads it."""
    verdict = found.verdict
    items, refs, left_out = view.evidence(verdict)
    queries = {
        clip(one_line(item.id), 24): evidence_links(a if item.says.startswith("A (") else b, item)
        for item in verdict.evidence
        if item.kind == "metric"
    }
    by_title = {title.split(" (")[0]: (title, head, rows) for title, head, rows in tables(found)}
    return {
        "v": verdict,
        "outcome": words.OUTCOMES[verdict.outcome],
        "tone": {"incident": "bad", "healthy": "good", "expected": "note"}.get(verdict.outcome, "unknown"),
        "summary": clip(one_line(verdict.summary), 1500),
        "speed": _speed(found),
        "causes": view.causes(verdict, refs),
        "evidence": [(item, queries.get(item.id, [])) for item in items],
        "left_out": left_out,
        "settings": by_title.get("Settings that differ"),
        "measured": by_title.get("Measured over the compared steps"),
        "intervals": [_interval(delta) for delta in found.deltas],
        "half": _HALF,
        "quality": [check for check in verdict.data_quality if not check.ok],
        "damage": [clip(one_line(line), 300) for line in found.damage[:20]],
    }


def _speed(found: Comparison) -> dict[str, Any] | None:
    aligned = found.aligned
    if aligned is None:
        return None
    low, high = aligned.difference.interval()
    return {
        "a": aligned.level_a,
        "b": aligned.level_b,
        "unit": aligned.unit,
        "change": aligned.difference.change,
        "low": low,
        "high": high,
        "differs": aligned.difference.differs(),
        "steps": aligned.difference.steps,
        "in_common": aligned.in_common,
    }


def _interval(delta: Delta) -> Interval:
    known = [abs(v) for v in (delta.difference, delta.low, delta.high, 1.6 * delta.floor) if v is not None]
    scale = _HALF / (max(known) or 1.0)

    def at(value: float | None) -> float | None:
        return None if value is None else round(value * scale, 1)

    return Interval(
        at(delta.low), at(delta.high), round(delta.difference * scale, 1), delta.floor * scale, delta.matters
    )
