"""The node ledger: which hosts keep hurting us, and which of them it would be wise to leave out."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.fleet.index import stamp
from trackwalker.fleet.rows import JobRow
from trackwalker.launch.ledger import WINDOW_S, incidents, path_of, suspects, wilson
from trackwalker.node.stages.incidents import Incident
from trackwalker.report.text import clip, one_line
from trackwalker.web.pages.jobs import index_of
from trackwalker.web.pages.render import in_thread, json_answer, kept, text_of, workspace_of

SCHEMA = "trackwalker.web.pages.nodes/1"
_DAYS = 14  # of the small calendars
_MOST = 500
_KINDS = {
    "check-failed": "check failed",
    "no-word": "silent",
    "first-failure": "failed first",
    "node-lost": "lost",
    "triage": "log",
    "excluded": "left out by hand",
    "verdict": "verdict",
}


@dataclass(frozen=True)
class Fact:
    """One thing that happened on a host."""

    t: float
    job: str
    kind: str
    line: str


@dataclass(frozen=True)
class Host:
    """A host with everything against it, the newest first."""

    name: str
    exclude: bool
    why: str
    facts: tuple[Fact, ...]
    jobs: int
    stands_out: bool  # named more often than chance explains
    days: tuple[int, ...]  # facts a day, the oldest day first

    @property
    def last(self) -> float:
        """When something happened last."""
        return self.facts[0].t


@dataclass(frozen=True)
class Share:
    """In how many of its jobs a host was named, with a 95 % interval, against all other hosts together."""

    named: int
    ran: int
    low: float
    high: float
    usual: float

    @property
    def stands_out(self) -> bool:
        """Whether even the low end is above what is usual: the same as on the fleet's page, of all time."""
        return self.named >= 2 and self.low > self.usual


class Shares:
    """Which hosts were named in how many of their jobs, counted once for all of them."""

    def __init__(self, every: list[JobRow]) -> None:
        self._ran = Counter(host for row in every for host in row.ran_on)
        self._named = Counter(host for row in every if row.troubled for host in set(row.hosts))
        self._all = self._ran.total(), self._named.total()

    def of(self, host: str) -> Share:
        """One host's."""
        named = self._named[host]
        ran = max(self._ran[host], named)
        others_ran, others_named = self._all[0] - ran, self._all[1] - named
        low, high = wilson(float(named), float(ran))
        return Share(named, ran, low, high, min(max(others_named, 0) / others_ran, 1.0) if others_ran > 0 else 0.0)


def routes() -> list[BaseRoute]:
    """The page and the same as JSON."""
    return [Route("/nodes", listed), Route("/nodes.json", as_json)]


async def listed(request: Request) -> Response:
    """The hosts, those to leave out first."""
    version, minute = (await in_thread(index_of(request).rows))[1], int(time.time() / 60.0)
    state = (version, await in_thread(stamp, path_of(workspace_of(request).root)), minute)
    return await kept(request, state, lambda: text_of(request, "nodes.html.j2", **_context(request)))


async def as_json(request: Request) -> Response:
    """The same for programs."""
    hosts = await in_thread(_hosts, request)
    return json_answer({"schema": SCHEMA, "nodes": [_plain(host) for host in hosts]})


def _context(request: Request) -> dict[str, Any]:
    hosts = _hosts(request)
    out = [host.name for host in hosts if host.exclude]
    return {"hosts": hosts[:_MOST], "left_out": max(len(hosts) - _MOST, 0), "exclude": out, "days": _DAYS}


def _hosts(request: Request) -> list[Host]:
    """From the ledger that agents write, and from verdicts, which name culprits with evidence."""
    root = workspace_of(request).root
    now = time.time()
    every = index_of(request).rows()[0]
    weighed = {s.host: s for s in suspects(root, now, ran_in_memory(every, now))}
    facts: dict[str, list[Fact]] = {}
    shares = Shares(every)
    for incident in incidents(root):
        facts.setdefault(incident.host, []).append(of_incident(incident))
    for row in every:
        for host in row.hosts if row.badge_from == "verdict" and row.troubled else ():
            facts.setdefault(host, []).append(_of_verdict(row))
    found = []
    for name, told in facts.items():
        told.sort(key=lambda fact: -fact.t)
        seen = weighed.get(name)
        jobs = len({fact.job for fact in told})
        why = seen.why if seen else _older(told, now)
        days = Counter(int((now - fact.t) // 86400) for fact in told)
        calendar = tuple(days.get(day, 0) for day in reversed(range(_DAYS)))
        out = shares.of(name).stands_out
        found.append(Host(name, bool(seen and seen.exclude), why, tuple(told), jobs, out, calendar))
    return sorted(found, key=lambda host: (not host.exclude, not host.stands_out, -host.jobs, -host.last, host.name))


def of_incident(incident: Incident) -> Fact:
    """A line of the ledger."""
    said = (
        f"{incident.what}: {incident.line}" if incident.line and incident.what not in incident.line else incident.line
    )
    return Fact(
        incident.t, incident.job, _KINDS.get(incident.kind, incident.kind), clip(one_line(said or incident.what), 200)
    )


def ran_in_memory(rows: list[JobRow], now: float) -> dict[str, dict[str, float]]:
    """Which jobs of the last week ran on which hosts, as the ledger wants it."""
    ran: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.when >= now - WINDOW_S:
            for host in row.ran_on:
                ran.setdefault(host, {})[row.id] = row.when
    return ran


def _of_verdict(row: JobRow) -> Fact:
    return Fact(row.ended or row.when, row.id, _KINDS["verdict"], clip(f"{row.badge}: {row.says}", 200))


def _older(told: list[Fact], now: float) -> str:
    if any(fact.kind == _KINDS["verdict"] for fact in told):
        return "suspect in a verdict"
    return "nothing in the last 7 days" if now - told[0].t > WINDOW_S else ""


def _plain(host: Host) -> dict[str, Any]:
    return {
        "host": host.name,
        "exclude": host.exclude,
        "stands_out": host.stands_out,
        "why": host.why,
        "jobs": host.jobs,
        "facts": [{"t": fact.t, "job": fact.job, "kind": fact.kind, "says": fact.line} for fact in host.facts],
    }
