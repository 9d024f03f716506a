"""Sweeps: what a series of short jobs was to find out, what it found, and what to do with the answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.errors import EvidenceError, JobNotFoundError, TrackwalkerError
from trackwalker.fleet.rows import Tone
from trackwalker.report.text import clip, one_line
from trackwalker.sweep.budget import budget_of, spent
from trackwalker.sweep.model import Conclusion, Strategy
from trackwalker.sweep.plan import Plan, list_folders, load_plan
from trackwalker.sweep.report import dumps, report, standing
from trackwalker.sweep.state import NAME as JOURNAL
from trackwalker.sweep.state import State, load_state, running
from trackwalker.sweep.strategies import build
from trackwalker.web.data.cache import Cache
from trackwalker.web.data.workspace import WebWorkspace
from trackwalker.web.pages.render import in_thread, page, workspace_of
from trackwalker.web.pages.sweeps_plot import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Figure, figure

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
