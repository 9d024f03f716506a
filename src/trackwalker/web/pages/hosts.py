"""One host: the jobs it ran in, what is said against it, how that went over the weeks, and how to take it out."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.errors import JobNotFoundError, UsageError
from trackwalker.fleet.incidents import drain_commands
from trackwalker.fleet.questions import rack_of
from trackwalker.fleet.rows import JobRow
from trackwalker.launch.ledger import incidents, suspects
from trackwalker.report.text import clip, one_line
from trackwalker.web.pages.jobs import index_of
from trackwalker.web.pages.nodes import Fact, Shares, of_incident, ran_in_memory
from trackwalker.web.pages.render import in_thread, json_answer, page, settings_of, workspace_of
from trackwalker.web.pages.sweeps import Sweep, every_sweep

SCHEMA = "trackwalker.web.host/1"
WEEKS = 12
_WEEK_S = 7 * 86400.0
_MOST_JOBS, _MOST_FACTS = 100, 100
_LONGEST = 255


def routes() -> list[BaseRoute]:
    """The page and the same as JSON; a host's name is a parameter, as it may hold anything."""
    return [Route("/host", shown), Route("/host.json", as_json)]


async def shown(request: Request) -> Response:
    """The page."""
    found = await in_thread(_host, request)
    return page(request, "host.html.j2", **found)


async def as_json(request: Request) -> Response:
    """The same for programs."""
    found = await in_thread(_host, request)
    return json_answer(
        {
            "schema": SCHEMA,
            "host": found["name"],
            "rack": found["rack"],
            "advice": found["why"],
            "exclude": found["exclude"],
            "share": found["share"].__dict__,
            "jobs": [row.id for row in found["jobs"]],
            "named_in": [row.id for row in found["named"]],
            "lost_gpu_hours": found["lost"],
            "weeks": found["weeks"],
            "ledger": [fact.__dict__ for fact in found["facts"]],
        }
    )


def _host(request: Request) -> dict[str, Any]:
    name = request.query_params.get("name", "")
    if not name or len(name) > _LONGEST:
        raise UsageError("which host? Its page is /host?name=HOST")
    every, root, now = index_of(request).rows()[0], workspace_of(request).root, time.time()
    ran = [row for row in every if name in row.ran_on]
    named = [row for row in every if name in row.hosts and row.troubled]
    named.sort(key=lambda row: (row.lost_gpu_hours is None, -(row.lost_gpu_hours or 0.0)))  # else the newest first
    facts = [of_incident(each) for each in incidents(root) if each.host == name]
    facts.sort(key=lambda fact: -fact.t)
    sweeps = [each for each in every_sweep(workspace_of(request)) if _takes_part(each, name)]
    if not ran and not named and not facts and not sweeps:
        raise JobNotFoundError(f"no job of this workspace ran on '{clip(one_line(name), 80)}', and nothing names it")
    weighed = next((s for s in suspects(root, now, ran_in_memory(every, now)) if s.host == name), None)
    lost = [row.lost_gpu_hours / len(row.hosts) for row in named if row.lost_gpu_hours is not None]
    causes: Counter[str] = Counter(row.cause for row in named if row.cause)
    return {
        "name": name,
        "rack": rack_of(name),
        "exclude": bool(weighed and weighed.exclude),
        "why": weighed.why if weighed else "",
        "share": Shares(every).of(name),
        "ran": len(ran),
        "jobs": ran[:_MOST_JOBS],
        "named": named[:_MOST_JOBS],
        "causes": causes.most_common(6),
        "lost": sum(lost) if lost else None,
        "price": settings_of(request).price,
        "facts": facts[:_MOST_FACTS],
        "more_facts": max(len(facts) - _MOST_FACTS, 0),
        "sweeps": sweeps[:20],
        "weeks": _weeks(named, facts, now),
        "drain": drain_commands(name),
    }


def _weeks(named: list[JobRow], facts: list[Fact], now: float) -> list[dict[str, Any]]:
    """What was said against it, week by week, the oldest first."""
    ages = Counter(int((now - row.when) // _WEEK_S) for row in named)
    noted = Counter(int((now - fact.t) // _WEEK_S) for fact in facts)
    return [
        {"from": now - (age + 1) * _WEEK_S, "jobs": ages.get(age, 0), "ledger": noted.get(age, 0)}
        for age in reversed(range(WEEKS))
    ]


def _takes_part(sweep: Sweep, host: str) -> bool:
    nodes = sweep.plan.request.get("nodes")
    return host in sweep.conclusion.exclude or (isinstance(nodes, list) and host in nodes)
