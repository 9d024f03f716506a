"""Several runs over each other: throughput, step time and loss by step or by time, and the settings that differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.diagnose.triage import Triage
from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.fleet.rows import JobRow, of_error, of_triage
from trackwalker.fleet.source import last_good
from trackwalker.job.layout import Job
from trackwalker.report import words
from trackwalker.report.charts.plots import Scale, beyond, course_range, line_path, px, value_ticks
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.pages.jobs import index_of
from trackwalker.web.pages.render import in_thread, page, workspace_of

MOST = 8
_POINTS = 300
_SETTINGS = 200
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000.0, 250.0, 64.0, 12.0, 10.0, 40.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Course:
    """One run as the charts need it: steps, hours since its first step, and what was measured at each."""

    row: JobRow
    step: Floats
    hours: Floats
    values: dict[str, Floats]  # by quantity


QUANTITIES = (
    ("tgs", "Throughput", "tokens/s/device"),
    ("seconds", "Step time", "seconds"),
    ("loss", "Loss", ""),
)


def routes() -> list[BaseRoute]:
    """The page."""
    return [Route("/runs", shown)]


async def shown(request: Request) -> Response:
    """The runs of the address; with `baseline=auto` the last good run of the first one's model as well."""
    given = request.query_params
    names = list(dict.fromkeys(name for name in given.getlist("job") if name))
    by = "time" if given.get("by") == "time" else "step"
    if not names:
        raise UsageError("which runs? Tick some in the list of jobs, or give /runs?job=A&job=B")
    if len(names) > MOST:
        raise UsageError(f"{MOST} runs fit into one chart; {len(names)} were given")
    context = await in_thread(_whole, request, names, by, given.get("baseline") == "auto")
    return page(request, "runs.html.j2", **context)


def _whole(request: Request, names: list[str], by: str, automatic: bool) -> dict[str, Any]:
    ws = workspace_of(request)
    jobs = [ws.job(name) for name in names]
    every = index_of(request).rows()[0]
    own = next((row for row in every if row.id == jobs[0].id), None)
    good = last_good(own, every) if own is not None else None
    if automatic and good is not None and good.id not in {job.id for job in jobs}:
        jobs = [*jobs, ws.job(good.id)][-MOST:]
    found = [_course(ws, job) for job in jobs]
    courses = [each for each in found if isinstance(each, Course)]
    base = good.id if good is not None and good.id in {job.id for job in jobs} else jobs[-1].id

    def url(**changed: str) -> str:
        pairs = [("job", job.id) for job in jobs] + [("by", changed.get("by", by))]
        return f"/runs?{urlencode(pairs)}"

    return {
        "runs": [each.row if isinstance(each, Course) else each for each in found],
        "base": base,
        "good": good,
        "charts": [chart for key, title, unit in QUANTITIES if (chart := _chart(courses, key, title, unit, by))],
        "by": by,
        "by_step": url(by="step"),
        "by_time": url(by="time"),
        "settings": _settings(ws, [job for job in jobs if job.log is not None], base),
        "with_good": f"{url()}&baseline=auto" if good is not None and base != good.id else "",
        "levels": _levels(courses, base),
    }


def _course(ws: WebWorkspace, job: Job) -> Course | JobRow:
    try:
        found = ws.triage(job)
    except TrackwalkerError as e:
        return of_error(job, str(e))
    row = of_triage(found, ws.verdict(job))
    line = found.record.timeline
    if line is None or not len(line):
        return row
    begin = float(line.ends[0] - line.seconds[0])
    values = {"tgs": line.tgs, "seconds": line.seconds, "loss": _losses(found, line.steps)}
    return Course(row, line.steps.astype(np.float64), (line.ends - begin) / 3600.0, values)


def _losses(found: Triage, steps: NDArray[np.int64]) -> Floats:
    told = found.index.steps.losses
    return np.array([told.get(int(step), np.nan) for step in steps], np.float64)


def _chart(courses: list[Course], key: str, title: str, unit: str, by: str) -> dict[str, Any] | None:
    """Lines over one axis; medians of a few steps, so that a save is no spike. None where no run has the quantity."""
    drawn = [(place, each) for place, each in enumerate(courses) if np.isfinite(each.values[key]).any()]
    if not drawn:
        return None
    lines = [(place, *_thin(each.step if by == "step" else each.hours, each.values[key])) for place, each in drawn]
    across = np.concatenate([x for _, x, _ in lines])
    levels = np.concatenate([y for _, _, y in lines])
    bottom, top = course_range(levels.tolist(), from_zero=key != "loss")
    x = Scale(float(across.min()), float(across.max()), _LEFT, _WIDTH - _RIGHT)
    y = Scale(bottom, top, _HEIGHT - _BOTTOM, _TOP)
    return {
        "id": key,
        "title": title,
        "unit": unit,
        "note": beyond(levels.tolist(), bottom, top, unit, "point"),
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "lines": [
            (place, courses[place].row.id, line_path([(x(a), y(b)) for a, b in zip(at, values, strict=True)]))
            for place, at, values in lines
        ],
        "edges": [
            (place, px(x(a)), px(y(b)), -1 if b > top else 1)
            for place, at, values in lines
            for a, b in zip(at, values, strict=True)
            if b > top or b < bottom
        ],
        "grid": [(px(y(tick.value)), tick.label) for tick in value_ticks(bottom, top, 4)],
        "ticks": [(px(x(tick.value)), tick.label) for tick in value_ticks(x.lo, x.hi, 6)],
        "across": "step" if by == "step" else "hours since the first step",
    }


def _thin(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) <= _POINTS:
        return x, y
    parts = np.array_split(np.arange(len(x)), _POINTS)
    return np.array([np.median(x[part]) for part in parts]), np.array([np.median(y[part]) for part in parts])


def _levels(courses: list[Course], base: str) -> dict[str, str]:
    """How fast each run did the steps that the baseline did, too: a median would hide a half that was slow."""
    reference = next((each for each in courses if each.row.id == base), None)
    found = {}
    for each in courses if reference is not None else []:
        assert reference is not None  # noqa: S101  # for the type checker
        common, own, its = np.intersect1d(each.step, reference.step, return_indices=True)
        mine, theirs = each.values["seconds"][own], reference.values["seconds"][its]
        both = np.isfinite(mine) & np.isfinite(theirs)
        if each.row.id == base:
            found[base] = "baseline"
        elif both.any():
            change = words.change(float(theirs[both].sum() / mine[both].sum()) - 1.0)
            part = f" (steps {common[0]:.0f}–{common[-1]:.0f})" if len(own) < len(each.step) else ""
            found[each.row.id] = f"{change}{part}"
    return found


def _settings(ws: WebWorkspace, jobs: list[Job], base: str) -> dict[str, Any]:
    """What any run was told differently from the baseline: a row for each setting, a column for each run."""
    reference = next((job for job in jobs if job.id == base), None)
    if reference is None:
        return {"rows": [], "more": 0}
    rows: dict[str, dict[str, str | None]] = {}
    stated: dict[str, str | None] = {}
    for job in jobs:
        if job.id == base:
            continue
        try:
            changes = ws.changes(reference, job)
        except TrackwalkerError:
            continue
        for change in changes:
            rows.setdefault(change.name, {})[job.id] = change.b
            stated.setdefault(change.name, change.a)
    table = []
    for name, values in list(rows.items())[:_SETTINGS]:
        cells = [(job.id, stated[name] if job.id == base else values.get(job.id, stated[name])) for job in jobs]
        table.append((name, [(value, job != base and job in values) for job, value in cells]))
    return {"rows": table, "more": max(len(rows) - _SETTINGS, 0), "columns": [job.id for job in jobs]}
