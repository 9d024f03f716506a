"""Questions about what grows slowly in a run at any speed: does it reach its limit before the run is done?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.facts.log_facts import Answer, add_facts
from trackwalker.record.clock import utc
from trackwalker.record.masks import WARM_UP_STEPS
from trackwalker.record.projection import final_step
from trackwalker.stats.segments import Trend, steady_rise
from trackwalker.telemetry.client import Floats, host_of
from trackwalker.telemetry.meaning import meaning_of
from trackwalker.telemetry.store import Telemetry

_POINTS = 72
_FREE = ("hw_fs_free_bytes", "ray_node_disk_free")
_USED = re.compile(r"(?:disk|fs|filesystem|volume)s?_(?:\w+_)?(?:used|usage|full)_")
_WHOLE = {"percent": 100.0, "ratio": 1.0}
_ONE_STORE = 0.05  # of what it fell by: whom the recorder asks some seconds later shows as much less of a share
_NO_ROOM = 0.001  # of what was free: no save of anything that trains fits into it
_DISK_S = 600.0  # saves and other users' files come and go within minutes
_USABLE = 0.95  # of the memory: there Ray ends workers, and the kernel is not far from it
_ALIKE = 0.5  # of the pace of those that matter
_MOST_TOLD = 16  # hosts whose numbers are kept beside a statement


@dataclass(frozen=True)
class _Memory:
    """A series of memory in use, what it is limited by, and how long a run has to be to tell by it."""

    metric: str
    used: str
    limit: str
    shortest_s: float
    least: float  # growth that is a leak whenever the run ends: of the limit, or of the first value without one


# A host's memory holds page cache that comes and goes, so it takes longer to tell. Of a host a tenth: jobs get all
# of it and keep no more than that in reserve. A rank's own settles within seconds; one that grew by half is no buffer.
_MEMORY = (
    _Memory("ray_node_mem_used", "ray_node_mem_used$at", "ray_node_mem_total", 600.0, 0.1),
    _Memory("hw_mem_used_bytes", "hw_mem_used_bytes$at", "hw_mem_total_bytes", 600.0, 0.1),
    _Memory(
        "hw_mem_available_bytes", "hw_mem_total_bytes$at - hw_mem_available_bytes$at", "hw_mem_total_bytes", 600.0, 0.1
    ),
    _Memory("hw_mem_rss_bytes", "hw_mem_rss_bytes$at", "", 20.0, 0.5),
)


def memory_grows(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Memory of some hosts, or of all, grows steadily: by much already, or so that it is full before the end."""
    window = _window(case, symptoms)
    if case.telemetry is None or window is None:
        return Answer(None)
    known = case.telemetry.metrics()
    asked = False
    for kind in _MEMORY:
        if kind.metric not in known or window.seconds < kind.shortest_s:
            continue
        trends = _trends(case, kind.used, window)
        if trends is None:
            continue  # the machine's own series, where ranks are lanes
        asked = True
        leaking = _leaking(case, kind, trends, window)
        if leaking:
            return _told(case, kind, leaking, len(trends), window, book)
    return Answer(False if asked else None)


def _window(case: Case, symptoms: Symptoms) -> Span | None:
    """From the first step, when weights and optimizer state are in memory, to the end of the work."""
    whole, timeline = symptoms.windows.get("whole"), case.timeline
    if case.telemetry is None or not whole or "unfinished-start" in symptoms.names:
        return None
    start = float(timeline.ends[0]) if timeline is not None and len(timeline) else whole[0].start
    end = min(case.end_of_work or whole[0].end, case.telemetry.range()[1])
    if "failed" in symptoms.names and timeline is not None and timeline.last_end is not None:
        end = min(end, timeline.last_end)  # who is killed gives it all back
    return Span(start, end) if end > start else None


def _trends(case: Case, used: str, window: Span) -> dict[str, Trend | None] | None:
    """The trend of every host of the job; None where the series is not of the job's hosts."""
    if case.telemetry is None:
        return None
    matrix = case.telemetry.matrix(used.replace("$at", ""), window.start, window.end, window.seconds / _POINTS)
    out: dict[str, Trend | None] = {}
    trusted = frozenset(case.trusted)
    for labels, values in zip(matrix.labels, matrix.values, strict=True):
        host = host_of(labels)
        if host is not None and (not case.hosts or host in trusted):
            out[host] = steady_rise(matrix.times, values)
    return out or None


def _leaking(
    case: Case, kind: _Memory, trends: dict[str, Trend | None], window: Span
) -> dict[str, tuple[Trend, float | None]]:
    """The hosts whose growth matters, with the seconds until their memory is full where a limit is known."""
    rising = {h: t for h, t in trends.items() if t is not None}
    limits = _limits(case, kind, rising, window)
    planned = still_to_run(case)
    out: dict[str, tuple[Trend, float | None]] = {}
    for host, trend in rising.items():
        full_in = trend.until(_USABLE * limits[host]) if host in limits else None
        whole = limits[host] if kind.limit and host in limits else trend.level - trend.grown
        much = trend.grown >= kind.least * whole
        if much or (full_in is not None and planned is not None and full_in < planned):
            out[host] = (trend, full_in)
    pace = min((t.slope for t, _ in out.values()), default=np.inf)
    alike = {h: t for h, t in rising.items() if t.slope >= _ALIKE * pace}  # it leaks there as well, with more room left
    return out | {h: (t, None) for h, t in alike.items() if h not in out}


def _limits(case: Case, kind: _Memory, rising: dict[str, Trend], window: Span) -> dict[str, float]:
    """The memory that each can have: its host's, or its own and what its growth takes of what the machine has free."""
    if case.telemetry is None:
        return {}
    if kind.limit:
        limits = ((host_of(s.labels), s.value) for s in case.telemetry.instant(kind.limit, window.end))
        return {h: v for h, v in limits if h is not None}
    free = [s.value for s in case.telemetry.instant("hw_mem_available_bytes", window.end)]
    together = sum(t.slope for t in rising.values())
    return {h: t.level + free[0] * t.slope / together for h, t in rising.items()} if len(free) == 1 else {}


def still_to_run(case: Case) -> float | None:
    """Seconds that the steps left to do would take, by the run's own pace."""
    timeline = case.timeline
    final = final_step(case.triage.index)
    if timeline is None or final is None or len(timeline) <= 2 * WARM_UP_STEPS:
        return None
    wall = float(timeline.ends[-1] - timeline.ends[WARM_UP_STEPS])  # with saves and all else that takes time
    pace = wall / float(timeline.steps[-1] - timeline.steps[WARM_UP_STEPS])
    left = max(0, final - int(timeline.steps[-1])) * pace
    return left if np.isfinite(left) else None


def _told(
    case: Case, kind: _Memory, leaking: dict[str, tuple[Trend, float | None]], of: int, window: Span, book: EvidenceBook
) -> Answer:
    telemetry = case.telemetry
    if telemetry is None:
        return Answer(None)
    few = sorted(leaking) if len(leaking) < of and len(leaking) * 2 <= max(2, of) else []
    who = ", ".join(few) if few else f"{len(leaking)} of {of} hosts" if of > 1 else next(iter(leaking))
    since = window.start + 0.25 * window.seconds  # the first saves leave a copy in memory: that is no part of the pace
    now, then = (kind.used.replace("$at", f" @ {t:.3f}") for t in (window.end, since))
    query = f"({now} - ({then})) / 1e9"
    values = {h: v for h, v in telemetry.by_host(query, window.end).items() if h in leaking or h in case.hosts}
    grown = [values[h] for h in leaking if h in values]
    if not grown:
        return Answer(None)
    others = [v for h, v in values.items() if h not in leaking]
    if few and others and float(np.median(others)) >= _ALIKE * max(t.grown for t, _ in leaking.values()) / 1e9:
        return Answer(False)  # all drift alike, and a few of them by chance more steadily
    minutes = (window.end - since) / 60
    says = f"{who}: memory in use grew steadily, by up to {max(grown):.3g} GB in {minutes:.3g} min"
    order = sorted(values, key=lambda h: (h not in leaking, -values[h], h))[:_MOST_TOLD]
    ids = [book.add("metric", query, says, {h: values[h] for h in order})]
    ends = [(full, h) for h, (_, full) in leaking.items() if full is not None]
    if ends:
        full, host = min(ends)
        pace = leaking[host][0].slope * 60 / 1e9
        says = f"{host}: at {pace:.3g} GB a minute its memory is full in {full / 3600:.3g} h"
        numbers = {"gb_per_min": pace, "full_in_h": full / 3600}
        planned = still_to_run(case)
        if planned is not None:
            says += f"; the steps left to do take {planned / 3600:.3g} h"
            numbers["left_h"] = planned / 3600
        source = f"{kind.metric}: median growth from block to block, and the steps left"
        ids.append(book.add("progress", source, says, numbers))
    return Answer(True, tuple(ids), tuple(few), window.start)


@dataclass(frozen=True)
class _Space:
    """What is free, by host and file system: a query ($at: when), and the unit that people read it in."""

    query: str
    scale: float
    unit: str

    def at(self, moment: float) -> str:
        """The query at one moment."""
        return f"({self.query.replace('$at', f' @ {moment:.3f}')}) / {self.scale:g}"


def _space(telemetry: Telemetry) -> _Space | None:
    known = telemetry.metrics()
    if free := next((m for m in _FREE if m in known), None):
        return _Space(f"min by (host, instance, mount) ({free}$at)", 1e9, "GB")
    used = {m: _WHOLE[u] for m in sorted(known) if _USED.search(m) and (u := meaning_of(m).unit) in _WHOLE}
    share = next((f"{whole:g} - max by (host, instance, mount) ({m}$at)" for m, whole in used.items()), None)
    return _Space(share, used[next(iter(used))] / 100.0, "%") if share is not None else None


def _own(hosts: Mapping[str, str], courses: Mapping[str, Floats], fell: Mapping[str, float], of: int) -> list[str]:
    """The hosts whose own file systems these are: what shows the same course on another host, too, is a share."""
    shared = {
        where
        for where, lost in fell.items()
        for other, theirs in courses.items()
        if hosts[other] != hosts[where] and np.nanmedian(np.abs(theirs - courses[where])) < _ONE_STORE * lost
    }
    few = sorted({hosts[where] for where in fell})
    return few if not shared and 2 * len(few) <= of else []


def _courses(
    case: Case, telemetry: Telemetry, space: _Space, window: Span
) -> tuple[Floats, dict[str, str], dict[str, Floats]]:
    """When the file systems were looked at, whose each is, and what was free on it."""
    query = space.query.replace("$at", "")
    matrix = telemetry.matrix(query, window.start, window.end, window.seconds / _POINTS)
    hosts, courses = dict[str, str](), dict[str, Floats]()
    for labels, values in zip(matrix.labels, matrix.values, strict=True):
        host = host_of(labels) or ""
        if not case.hosts or host in {*case.trusted, *case.topology.machines}:
            where = f"{host}:{labels.get('mount', '')}".rstrip(":")
            hosts[where], courses[where] = host, values
    return matrix.times, hosts, courses


def disk_full(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Free space that was there in the beginning is gone at the end of a run that has not done all its steps."""
    window = _window(case, symptoms)
    space = _space(case.telemetry) if case.telemetry is not None else None
    if case.telemetry is None or window is None or space is None or case.all_done:
        return Answer(None)
    times, hosts, courses = _courses(case, case.telemetry, space, window)
    full, fell = dict[str, float](), dict[str, float]()
    for where, values in courses.items():
        known = np.flatnonzero(np.isfinite(values))
        free = values[known]
        if len(free) > 2 and free[-1] <= _NO_ROOM * free[:-2].max():
            full[where] = float(times[known[np.argmax(free <= _NO_ROOM * free.max())]])
            fell[where] = float(free.max())
    if not full:
        return Answer(False)
    few = _own(hosts, courses, fell, len(set(hosts.values())))
    query = space.at(window.end)
    free_now = {host_of(s.labels) or "": s.value for s in case.telemetry.instant(query, window.end)}
    who, since = ", ".join(few) or f"{len(full)} hosts", min(full.values())
    says = f"{who}: {min(free_now.values()):.3g} {space.unit} are free at the end, none since {utc(since)}"
    return Answer(True, (book.add("metric", query, says, free_now),), tuple(few), since)


def disk_fills(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Free space falls all along, so that none is left before the run is done and before as long again is over.

    No further: a store is shared, old saves are removed after so many or at night. What was kept through so many hours
    is as likely as not to be kept through as many more; of a time beyond that they tell nothing.
    """
    window, planned = _window(case, symptoms), still_to_run(case)
    if "failed" in symptoms.names or disk_full(case, symptoms, EvidenceBook()).fired:
        return Answer(False)  # that is no forecast any more
    space = _space(case.telemetry) if case.telemetry is not None else None
    if case.telemetry is None or window is None or space is None or window.seconds < _DISK_S:
        return Answer(None)
    times, hosts, courses = _courses(case, case.telemetry, space, window)
    left = min(planned, window.seconds) if planned is not None else window.seconds
    stairs = len(case.log.saves) or len(times)  # a store fills by saves
    trends = {where: trend for where, v in courses.items() if (trend := steady_rise(times, -v, stairs)) is not None}
    full = {where: trend for where, trend in trends.items() if trend.until(0.0) < left}
    if not full:
        return Answer(False)
    where = min(full, key=lambda w: (full[w].until(0.0), w))
    few = _own(hosts, courses, {w: t.grown for w, t in full.items()}, len(set(hosts.values())))
    query = space.at(window.end)
    mount, answer = where.removeprefix(hosts[where]).removeprefix(":"), case.telemetry.instant(query, window.end)
    free = {host_of(s.labels) or "": s.value for s in answer if s.labels.get("mount", "") == mount}
    now = free.get(hosts[where], -full[where].level / space.scale)
    ids = [book.add("metric", query, f"{where}: {now:.3g} {space.unit} are free in the end", free)]
    numbers = {"per_min": full[where].slope * 60 / space.scale, "full_in_h": full[where].until(0.0) / 3600}
    says = f"{where}: at {numbers['per_min']:.3g} {space.unit} a minute it is full in {numbers['full_in_h']:.3g} h"
    if planned is not None:
        numbers["left_h"] = planned / 3600
        says += f"; the steps left to do take {numbers['left_h']:.3g} h"
    ids.append(book.add("progress", "free space: median fall from block to block, and the steps left", says, numbers))
    return Answer(True, tuple(ids), tuple(few), window.start)


add_facts(memory_grows, disk_fills, disk_full)
