"""Sweeps: what a series of short jobs was to find out, what it found, and what to do with the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.errors import EvidenceError, JobNotFoundError, TrackwalkerError
from trackwalker.fleet.rows import Tone
from trackwalker.report import words
from trackwalker.report.charts.plots import Scale, drawable, line_path, px, value_ticks
from trackwalker.report.text import clip, clip_middle, one_line
from trackwalker.sweep.budget import budget_of, spent
from trackwalker.sweep.model import Conclusion, Plot, Strategy
from trackwalker.sweep.plan import Plan, list_folders, load_plan
from trackwalker.sweep.report import dumps, report, standing
from trackwalker.sweep.state import NAME as JOURNAL
from trackwalker.sweep.state import State, load_state, running
from trackwalker.sweep.strategies import build
from trackwalker.web.data.cache import Cache
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.pages.render import in_thread, page, workspace_of

_MOST = 200  # sweeps on one page
_ROWS = 1000
_STANDINGS: dict[str, Tone] = {"running": "run", "finished": "good"}
_ENDS: dict[str, Tone] = {"ok": "good", "cancelled": "", "config-error": "warn"}


@dataclass(frozen=True)
class Sweep:
    """One sweep as its pages show it; the conclusion is the strategy's word on the results so far."""

    plan: Plan
    state: State
    strategy: Strategy
    conclusion: Conclusion
    runner: str  # who runs it now

    @property
    def standing(self) -> tuple[str, Tone]:
        """In a word, and its colour."""
        word = standing(self.state, self.runner)
        return word, _STANDINGS.get(word, "warn")

    @property
    def figures(self) -> list[Figure]:
        """The plots of its conclusion."""
        return [figure(plot) for plot in self.conclusion.plots]

    @property
    def node_hours(self) -> float:
        """What it has cost."""
        return spent(self.state, time.time())

    @property
    def budget(self) -> float | None:
        """What it may cost."""
        return budget_of(self.plan, self.state)


_KEPT: Cache[Sweep] = Cache(64)


def routes() -> list[BaseRoute]:
    """The list, one sweep as JSON, one sweep."""
    return [Route("/sweeps", listed), Route("/sweeps/{id}/report.json", as_json), Route("/sweeps/{id}", shown)]


async def listed(request: Request) -> Response:
    """Every sweep of the workspace, newest first."""
    found, left_out = await in_thread(_all, workspace_of(request))
    return page(request, "sweeps.html.j2", sweeps=found, left_out=left_out)


async def shown(request: Request) -> Response:
    """One sweep: the answer, its plots and tables, every trial."""
    found = await in_thread(_one, workspace_of(request), request.path_params["id"])
    runs = list(found.state.runs.values())
    frame = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "bottom": BOTTOM}
    left_out = max(len(runs) - _ROWS, 0)
    return page(request, "sweep.html.j2", sweep=found, runs=runs[:_ROWS], left_out=left_out, ends=_ENDS, frame=frame)


async def as_json(request: Request) -> Response:
    """One sweep for programs, as `sweep` reports it."""
    found = await in_thread(_one, workspace_of(request), request.path_params["id"])
    text = dumps(report(found.plan, found.state, found.strategy, found.runner))
    return Response(text, media_type="application/json")


def _all(ws: WebWorkspace) -> tuple[list[Sweep | tuple[str, str]], int]:
    folders = _folders(ws)
    out: list[Sweep | tuple[str, str]] = []
    for folder in folders[:_MOST]:
        try:
            out.append(_read(folder))
        except TrackwalkerError as e:
            out.append((clip(one_line(folder.name), 120), clip(one_line(str(e)), 300)))
    return out, max(len(folders) - _MOST, 0)


def every_sweep(ws: WebWorkspace) -> list[Sweep]:
    """Those that can be read, newest first."""
    return [each for each in _all(ws)[0] if isinstance(each, Sweep)]


def _one(ws: WebWorkspace, name: str) -> Sweep:
    for folder in _folders(ws):
        if folder.name == name:
            return _read(folder)
    raise JobNotFoundError(f"no sweep '{clip(one_line(name), 80)}' in this workspace: the page of sweeps lists them")


def _folders(ws: WebWorkspace) -> list[Path]:
    return [folder for folder in list_folders(ws.root) if ws.agent.inside(folder)]


def _read(folder: Path) -> Sweep:
    journal = folder / JOURNAL
    held = journal.stat() if journal.exists() else None
    state = (held.st_size, held.st_mtime_ns) if held else None
    runner = running(folder)
    return _KEPT.get(folder, (state, runner), lambda: _make(folder, runner))


def _make(folder: Path, runner: str) -> Sweep:
    plan, state = load_plan(folder), load_state(folder)
    try:
        strategy = build(plan.kind, plan.request)
        return Sweep(plan, state, strategy, strategy.conclude(state.done), runner)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise EvidenceError(f"sweep {folder.name} was made by another version ({type(e).__name__}: {e})") from e


WIDTH, HEIGHT = 860, 300
LEFT, RIGHT, TOP, BOTTOM = 70.0, 844.0, 12.0, 250.0
_MOST_NAMES = 14
_MOST_POINTS = 2000


@dataclass(frozen=True)
class Point:
    """One mark: where it is, and the path of its interval."""

    x: str
    y: str
    interval: str
    marked: bool
    name: str


@dataclass(frozen=True)
class Figure:
    """A drawing and its table."""

    title: str
    x_label: str
    y_label: str
    points: tuple[Point, ...]
    course: str  # a line through the points where x is a number
    x_ticks: tuple[tuple[str, str], ...]
    y_ticks: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, str, str], ...]


def figure(plot: Plot) -> Figure:
    """The drawing of a plot; what was not measured has a row in the table and no mark."""
    count = min(len(plot.x), len(plot.y), _MOST_POINTS)
    values, low, high = (_padded(v, count) for v in (plot.y, plot.low, plot.high))
    names = [words.number(x) if isinstance(x, (int, float)) else one_line(x) for x in plot.x[:count]]
    numbers = [float(x) for x in plot.x[:count] if isinstance(x, (int, float)) and drawable(x)]
    numeric = len(numbers) == count and len(set(numbers)) > 1
    places = numbers if numeric else [float(i) for i in range(count)]
    x, y = _across(places), _up([v for v in (*values, *low, *high) if v is not None])
    points = []
    for i, value in enumerate(values):
        if value is not None:
            at, down, up = px(x(places[i])), low[i], high[i]
            bar = ""
            if down is not None and up is not None:
                bar = f"M{at} {px(y(down))}V{px(y(up))}m-4 0h8M{at} {px(y(down))}m-4 0h8"
            points.append(Point(at, px(y(value)), bar, i in plot.marked, names[i]))
    known = [(x(at), y(v)) for at, v in sorted(zip(places, values, strict=True), key=lambda p: p[0]) if v is not None]
    every = max(-(-count // _MOST_NAMES), 1)
    named = [(px(x(places[i])), clip_middle(names[i], 14)) for i in range(0, count, every)]
    ticked = [(px(x(t.value)), t.label) for t in value_ticks(x.lo, x.hi, 8)]
    return Figure(
        one_line(plot.title),
        one_line(plot.x_label),
        one_line(plot.y_label),
        tuple(points),
        line_path(known) if numeric and len(known) > 1 else "",
        tuple(ticked if numeric else named),
        tuple((px(y(t.value)), t.label) for t in value_ticks(y.lo, y.hi)),
        tuple((names[i], _number(values[i]), _interval(low[i], high[i])) for i in range(count)),
    )


def _across(places: list[float]) -> Scale:
    low, high = min(places, default=0.0), max(places, default=1.0)
    pad = 0.06 * (high - low) or 0.5
    return Scale(low - pad, high + pad, LEFT, RIGHT)


def _up(values: list[float]) -> Scale:
    """From zero, unless that would flatten the picture."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(0.0 if 0 < low < 0.5 * high else low - room, high + room, BOTTOM, TOP)


def _padded(values: Sequence[float | None], count: int) -> list[float | None]:
    return [v if drawable(v) else None for v in values[:count]] + [None] * max(count - len(values), 0)


def _number(value: float | None) -> str:
    return "not measured" if value is None else words.number(value)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{words.number(low)} to {words.number(high)}"
