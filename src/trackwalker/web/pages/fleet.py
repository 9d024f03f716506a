"""The fleet: which causes, hosts, racks and models cost most, how goodput goes, which hosts return again and again."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.errors import MissingToolError
from trackwalker.fleet import questions
from trackwalker.fleet.questions import DAY_S, Day
from trackwalker.fleet.store import Store
from trackwalker.report.charts.plots import Scale, line_path, px, stretches
from trackwalker.web.pages.jobs import index_of
from trackwalker.web.pages.render import in_thread, json_bytes, kept, settings_of, text_of

SCHEMA = "trackwalker.web.pages.fleet/1"
SPANS = ((7, "7 days"), (30, "30 days"), (90, "90 days"), (0, "All time"))
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000.0, 220.0, 46.0, 46.0, 12.0, 26.0
_MOST_DAYS = 400
_FRESH_S = 60.0


def routes() -> list[BaseRoute]:
    """The page and the same as JSON."""
    return [Route("/fleet", shown), Route("/fleet.json", as_json)]


async def shown(request: Request) -> Response:
    """The page."""
    state = await in_thread(_state, request)
    return await kept(request, state, lambda: text_of(request, "fleet.html.j2", **_fleet(request)))


async def as_json(request: Request) -> Response:
    """The same for programs."""
    state = await in_thread(_state, request)
    return await kept(request, state, lambda: json_bytes(_document(request)), "application/json")


def _state(request: Request) -> tuple[int, int]:
    """Made anew when a row changes; the window of time moves with the minute."""
    return index_of(request).rows()[1], int(time.time() / _FRESH_S)


def _document(request: Request) -> dict[str, Any]:
    found = _fleet(request)
    parts = ("causes", "hosts", "racks", "models", "flaky", "days")
    told: dict[str, Any] = {name: [asdict(each) for each in found[name]] for name in parts}
    return {"schema": SCHEMA, "since": found["since"], "fleet": asdict(found["whole"]), **told}


def _fleet(request: Request) -> dict[str, Any]:
    asked = request.query_params.get("days", "30")
    span = int(asked) if asked in {str(days) for days, _ in SPANS} else 30
    since = time.time() - span * DAY_S if span else 0.0
    index = index_of(request)
    pending = sum(row.pending for row in index.rows()[0])
    store = index.saved()
    if store is None:
        raise MissingToolError("this page needs duckdb: pip install 'trackwalker[web]'")
    days = questions.days(store, since)[-_MOST_DAYS:]
    return {
        **_costs(store, since),
        "span": span,
        "spans": SPANS,
        "since": since,
        "pending": pending,
        "whole": questions.whole(store, since),
        "flaky": questions.flaky(store, since, 30),
        "days": days,
        "chart": chart(days),
        "price": settings_of(request).price,
    }


def _costs(store: Store, since: float) -> dict[str, Any]:
    return {
        "causes": questions.by_cause(store, since, 12),
        "hosts": questions.by_host(store, since, 12),
        "racks": questions.by_rack(store, since, 12),
        "models": questions.by_model(store, since, 12),
    }


def chart(days: list[Day]) -> dict[str, Any] | None:
    """Goodput as a line from 0 to 100 %, GPU-hours held and lost as bars below it; None for less than two days."""
    if len(days) < 2:
        return None
    base = _HEIGHT - _BOTTOM
    most = max(day.gpu_hours or 0.0 for day in days) or 1.0
    x, y = Scale(days[0].t, days[-1].t + DAY_S, _LEFT, _WIDTH - _RIGHT), Scale(0, 1, base, _TOP)
    tall = Scale(0, most, 0, base - _TOP)
    wide = max(x(days[0].t + DAY_S) - _LEFT - 1.5, 1.0)
    bars = [
        {
            "x": px(x(day.t)),
            "w": px(wide),
            "held": px(tall(day.gpu_hours or 0.0)),
            "lost": px(tall(day.lost_gpu_hours or 0.0)),
            "day": day,
        }
        for day in days
    ]
    runs = stretches([None if day.goodput is None else (x(day.t + DAY_S / 2), y(day.goodput)) for day in days])
    every = max(1, len(days) // 8)
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "base": base,
        "bars": bars,
        "lines": [line_path(run) for run in runs if len(run) > 1],
        "dots": [(px(run[0][0]), px(run[0][1])) for run in runs if len(run) == 1],
        "grid": [(px(y(share)), f"{100 * share:.0f} %", most * share) for share in (0, 0.5, 1)],
        "ticks": [(px(x(day.t)), day.t) for day in days[::every]],
    }
