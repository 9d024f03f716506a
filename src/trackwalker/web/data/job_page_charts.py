"""The numbers behind the charts of a job page, each answer bounded in points, and the query box."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import anyio
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.errors import EvidenceError, TrackwalkerError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.report.story.background import restarts_of
from trackwalker.report.story.heat import band
from trackwalker.telemetry.client import Labels, QueryError, Telemetry
from trackwalker.telemetry.meaning import meaning_of
from trackwalker.web.data import course, gpu_lanes, heat_rows, query, series
from trackwalker.web.data.heat import Grid, How, Small, check_metric, is_counter, name_of, selector
from trackwalker.web.data.job_data import telling_metrics
from trackwalker.web.data.job_page_work import Work, work_of
from trackwalker.web.data.pace import sample_interval
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.pages.render import in_thread, job_of, job_url, json_answer, page, while_wanted, workspace_of

# What to draw while no verdict says what is telling: the first that was recorded.
_USUAL = ("hw_gpu_power_watts", "ray_node_gpus_utilization", "hw_cpu_seconds_total", "hw_procs_running", "up")
_GPU = ("hw_gpu_power_watts", "hw_gpu_clock_mhz", "hw_gpu_temperature_celsius", "ray_node_gpus_utilization")
_LATEST = 253402300799.0


def routes() -> list[BaseRoute]:
    """Everything that ends in .json, and the query page."""
    return [
        Route("/job/{id}/timeline.json", timeline),
        Route("/job/{id}/metrics.json", metrics),
        Route("/job/{id}/heat.json", heat_map),
        Route("/job/{id}/overlay.json", against_control),
        Route("/job/{id}/lanes.json", lanes),
        Route("/job/{id}/scalars.json", scalars),
        Route("/job/{id}/density.json", density),
        Route("/job/{id}/raw.json", raw_samples),
        Route("/job/{id}/query", query_page),
        Route("/job/{id}/query.json", query_json),
    ]


async def timeline(request: Request) -> Response:
    """Steps, phases and marks; without a diagnosis only the steps."""
    job = await job_of(request)
    return json_answer(await in_thread(_timeline, workspace_of(request), work_of(request), job))


def _timeline(workspace: WebWorkspace, work: Work, job: Job) -> dict[str, Any]:
    known, seen = work.known(job), workspace.triage(job)
    if known is not None:
        return series.told(known.story, restarts_of(job), seen, known.verdict)
    try:
        with workspace.metrics(job) as telemetry:
            return series.early(job, seen, telemetry)
    except TrackwalkerError:
        return series.early(job, seen, None)


async def metrics(request: Request) -> Response:
    """What was recorded, what is telling, and over which time."""
    job = await job_of(request)
    return json_answer(await in_thread(_metrics, workspace_of(request), work_of(request), job))


def _metrics(workspace: WebWorkspace, work: Work, job: Job) -> dict[str, Any]:
    with workspace.metrics(job) as telemetry:
        names, (start, end) = sorted(telemetry.metrics()), telemetry.range()
    verdict = work.verdict(job)
    telling = [name for name in (telling_metrics(verdict) if verdict else []) if name_of(name) in names]
    usual = [name for name in _USUAL if name in names]
    return {
        "metrics": names[:5000],
        "counters": [name for name in names if is_counter(name)],
        "telling": telling,
        "first": next(iter([*telling, *usual, *names]), ""),
        "gpu": next((n for n in [*(t for t in telling if "gpu" in t), *_GPU] if n in names), ""),
        "accused": work.accused(job)[:40],
        "ways": list(How.__args__),  # type: ignore[attr-defined]
        "start": start,
        "end": end,
    }


async def heat_map(request: Request) -> Response:
    """Hosts x time of one metric, at most 200 rows; `ranks=a-b` gives the hosts of one shared row."""
    job, asked = await job_of(request), request.query_params
    work = work_of(request)

    def make() -> dict[str, Any]:
        grid = work.grid(job, asked.get("metric", ""), asked.get("how", "auto"), *_span(request))
        accused = _recorded_names(work, job, grid.hosts)
        order = heat_rows.rank(grid, accused)
        ranks = asked.get("ranks", "")
        rows = (
            heat_rows.members(grid, order, accused, *_ranks(ranks)) if ranks else heat_rows.group(grid, order, accused)
        )
        return heat_rows.document(grid, order, rows, work.usual(job))

    return json_answer(await in_thread(make))


def _recorded_names(work: Work, job: Job, hosts: Sequence[str]) -> list[str]:
    """The suspects by the names under which this metric was recorded."""
    machines = work.machines(job)
    return list(dict.fromkeys(h if h in hosts else machines.get(h, h) for h in work.accused(job)))


async def against_control(request: Request) -> Response:
    """Chosen hosts (else the suspects) over the band of the others; `host=` alone chooses none."""
    job, asked = await job_of(request), request.query_params
    work = work_of(request)

    def make() -> dict[str, Any]:
        how = asked.get("how", "auto")
        metric = asked.get("metric", "")
        if how == "auto" and not is_counter(metric):
            how = "mean"  # a line that jumps between a host's highest and lowest GPU would tell nothing
        grid = work.grid(job, metric, how, *_span(request))
        suspects = work.accused(job)
        chosen = [host for host in asked.getlist("host") if host][: 2 * gpu_lanes.MOST_LANES]
        return overlay(grid, chosen if "host" in asked else suspects, suspects, work.machines(job))

    return json_answer(await in_thread(make))


async def lanes(request: Request) -> Response:
    """The devices of one host."""
    job, asked = await job_of(request), request.query_params
    workspace, work = workspace_of(request), work_of(request)

    def make() -> dict[str, Any]:
        with workspace.metrics(job) as telemetry:
            found = gpu_lanes.lanes(telemetry, asked.get("host", ""), asked.get("metric", ""), *_span(request))
            machine = work.machines(job).get(asked.get("host", ""))
            if machine is None or found["lanes"] or found["zero"]:
                return found
            return gpu_lanes.lanes(telemetry, machine, asked.get("metric", ""), *_span(request))

    return json_answer(await in_thread(make))


async def scalars(request: Request) -> Response:
    """Learning rate, gradient norm and loss as TensorBoard's scalars were recorded; `but=` names what is drawn."""
    job, workspace, work = await job_of(request), workspace_of(request), work_of(request)
    but = frozenset(request.query_params.get("but", "").split(","))

    def make() -> dict[str, Any]:
        with workspace.metrics(job) as telemetry:
            busy = work.busy(job) if not is_live(job.state) else None
            made = course.scalars(telemetry, but, busy[1] if busy else None)
            return {"tracks": [track.to_dict() for track in made]}

    return json_answer(await in_thread(make))


async def density(request: Request) -> Response:
    """Lines, warnings and errors of the log over time."""
    job, work = await job_of(request), work_of(request)

    def make() -> dict[str, Any]:
        try:
            return work.written(job).density(*_span(request))
        except EvidenceError as e:  # a log without times is no failure of the page
            return {"times": [], "lines": [], "errors": [], "warnings": [], "note": f"{e}."}

    return json_answer(await in_thread(make))


async def raw_samples(request: Request) -> Response:
    """The stored samples of a metric around a moment, host by host: what every smoothed line is made of."""
    job, asked, workspace = await job_of(request), request.query_params, workspace_of(request)
    at = _time("at", asked.get("at", ""))
    if at is None:
        raise UsageError("at is the moment to look at, in epoch seconds")

    def make() -> dict[str, Any]:
        with workspace.metrics(job) as telemetry:
            machines = work_of(request).machines(job)
            hosts = list(dict.fromkeys(machines.get(host, host) for host in asked.getlist("host")[:8] if host))
            return around(telemetry, asked.get("metric", ""), hosts, at)

    return json_answer(await in_thread(make))


async def query_page(request: Request) -> Response:
    """The query box on its own page, so that every number can link to its question."""
    job = await job_of(request)
    asked = _question(request)
    answer, error = None, ""
    if asked.promql.strip():
        try:
            answer = await while_wanted(request, _answer(request, job, asked))
        except (UsageError, EvidenceError, QueryError) as e:
            error = str(e)
    return page(
        request, "job_query.html.j2", job=job, asked=asked, answer=answer, error=error, url=job_url(job.id, "query")
    )


async def query_json(request: Request) -> Response:
    """One PromQL question; an error is 400 with Prometheus' own words."""
    job = await job_of(request)
    try:
        return json_answer(await while_wanted(request, _answer(request, job, _question(request))))
    except QueryError as e:
        raise UsageError(str(e)) from e


async def _answer(request: Request, job: Job, asked: query.Question) -> dict[str, Any]:
    """Few at a time, apart from the pages' own work; a visitor who leaves takes the question along."""
    async with request.app.state.queries:
        holder = workspace_of(request).metrics(job)
        telemetry = await in_thread(holder.__enter__)
        try:
            made = await in_thread(query.plan, telemetry, asked)
            began = time.perf_counter()
            raw = await query.fetch(telemetry, made)
            return await in_thread(query.answer, telemetry, made, raw, time.perf_counter() - began)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(holder.__exit__, None, None, None)


def _question(request: Request) -> query.Question:
    asked = request.query_params
    start, end = _span(request)
    return query.Question(asked.get("q", ""), start, end, asked.get("mode") == "instant")


def _span(request: Request) -> tuple[float | None, float | None]:
    """`from` and `to` in epoch seconds."""
    asked = request.query_params
    return _time("from", asked.get("from", "")), _time("to", asked.get("to", ""))


def _time(name: str, text: str) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not (math.isfinite(value) and 0 <= value <= _LATEST):
        raise UsageError(f"{name} '{text[:40]}' is no time: epoch seconds are meant")
    return value


def _ranks(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and len(text) < 20):
        raise UsageError("ranks are two places in the order of the hosts, such as 120-125")
    return int(first), int(last)


MOST_LINES = 8


def overlay(
    grid: Grid, chosen: Sequence[str], suspects: Collection[str] = (), machines: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Lines of chosen hosts and the band of the others; only whom the verdict names is a suspect, however chosen."""
    rows = {host: i for i, host in enumerate(grid.hosts)}
    # A lane has what its machine has, where nothing of its own was recorded.
    lanes = {lane: rows[node] for lane, node in (machines or {}).items() if node in rows and lane not in rows}
    where = {**rows, **lanes}
    shown = [host for host in chosen if host in where][:MOST_LINES]
    taken = {where[host] for host in (*chosen, *suspects) if host in where}
    others = [i for i in range(len(grid.hosts)) if i not in taken]
    low, middle, high = band(grid.values[others])
    return {
        "metric": grid.metric,
        "how": grid.how,
        "queries": list(grid.queries),
        "times": [round(float(t), 3) for t in grid.times],
        "unit": meaning_of(name_of(grid.metric)).shown_unit,
        "step": grid.step,
        "window": grid.window,
        "lines": [
            {"host": host, "suspect": host in suspects, "values": _plain(grid.values[where[host]])} for host in shown
        ],
        "absent": [host for host in chosen if host not in where][:MOST_LINES],
        "left_out": max(0, sum(host in where for host in chosen) - MOST_LINES),
        "control": {"hosts": len(others), "low": _plain(low), "median": _plain(middle), "high": _plain(high)},
    }


def _plain(values: Small) -> list[float | None]:
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]


_EACH_SIDE = 8  # samples before and after
_MOST_SERIES = 24
_MOST_SAMPLES = 60  # of a series
_NEVER = frozenset({"__name__", "instance", "job", "job_id"})


def around(telemetry: Telemetry, metric: str, hosts: Sequence[str], at: float) -> dict[str, Any]:
    """Every series of these hosts within a few samples of a moment; of all hosts where none is named."""
    check_metric(telemetry, metric)
    chosen = [selector(metric, host=host) for host in hosts] or [selector(metric)]
    reach = max(_EACH_SIDE * sample_interval(telemetry, chosen[0]), 2.0)
    found = [series for each in chosen for series in telemetry.raw(each, at - reach, at + reach)]
    return {
        "metric": metric,
        # What is stored, and not its rate: of a counter the sum so far.
        "unit": meaning_of(name_of(metric)).unit,
        "at": at,
        "queries": chosen,
        "series": [_row(labels, times, values) for labels, times, values in found[:_MOST_SERIES]],
        "left_out": max(0, len(found) - _MOST_SERIES),
    }


def _row(labels: Labels, times: Any, values: Any) -> dict[str, Any]:
    name = " ".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in _NEVER)
    return {
        "name": name or labels.get("__name__", ""),
        "times": [round(float(t), 3) for t in times[:_MOST_SAMPLES]],
        "values": [float(f"{v:.8g}") if np.isfinite(v) else None for v in values[:_MOST_SAMPLES]],
    }
