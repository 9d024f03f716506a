"""Sweeps: what a series of short jobs was to find out, what it found, and what to do with the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from trackwalker.errors import JobNotFoundError, TrackwalkerError
from trackwalker.report.text import clip, one_line
from trackwalker.sweep.model import SCHEMA, Conclusion
from trackwalker.sweep.plan import Plan, list_folders, load_plan
from trackwalker.sweep.state import NAME as JOURNAL
from trackwalker.sweep.state import State, load_state, running
from trackwalker.sweep.strategies import build
from trackwalker.web.cache import Cache
from trackwalker.web.jobs_rows import Tone
from trackwalker.web.pages import in_thread, json_answer, page, workspace_of
from trackwalker.web.sweeps_plot import Figure, figure
from trackwalker.web.workspace import WebWorkspace

_MOST = 200  # sweeps on one page
_ROWS = 1000
_TONES: dict[str, Tone] = {"ok": "good", "cancelled": "", "config-error": "warn"}


@dataclass(frozen=True)
class Sweep:
    """One sweep as its pages show it."""

    plan: Plan
    state: State
    conclusion: Conclusion | None
    note: str  # why there is no conclusion
    runner: str  # who runs it now

    @property
    def standing(self) -> tuple[str, Tone]:
        """In a word, and its colour."""
        if self.runner:
            return "running", "run"
        if self.state.ended is None:
            return "interrupted", "warn"
        return ("stopped", "warn") if self.state.stop else ("finished", "good")

    @property
    def figures(self) -> list[Figure]:
        """The plots of its conclusion."""
        return [figure(plot) for plot in self.conclusion.plots] if self.conclusion else []

    @property
    def minutes(self) -> float:
        """Node-minutes spent on what has come to a result."""
        runs = (run for run in self.state.runs.values() if run.result is not None)
        return sum(run.result.minutes * max(len(run.trial.nodes), 1) for run in runs if run.result)


_KEPT: Cache[Sweep] = Cache(64)


def routes() -> list[BaseRoute]:
    """The list, one sweep, and one sweep as JSON."""
    return [Route("/sweeps", listed), Route("/sweeps/{id}.json", as_json), Route("/sweeps/{id}", shown)]


async def listed(request: Request) -> Response:
    """Every sweep of the workspace, newest first."""
    found, left_out = await in_thread(_all, workspace_of(request))
    return page(request, "sweeps.html.j2", sweeps=found, left_out=left_out)


async def shown(request: Request) -> Response:
    """One sweep: the answer, its plots and tables, every trial."""
    found = await in_thread(_one, workspace_of(request), request.path_params["id"])
    rows = list(found.state.runs.values())
    return page(request, "sweep.html.j2", sweep=found, runs=rows[:_ROWS], left_out=len(rows) - _ROWS, tones=_TONES)


async def as_json(request: Request) -> Response:
    """One sweep for programs."""
    found = await in_thread(_one, workspace_of(request), request.path_params["id"])
    document = {
        "schema": SCHEMA,
        **found.plan.shown(),
        "standing": found.standing[0],
        "conclusion": found.conclusion.to_dict() if found.conclusion else None,
        "results": [result.to_dict() for result in found.state.done.values()],
    }
    return json_answer(document)


def _all(ws: WebWorkspace) -> tuple[list[Sweep | tuple[str, str]], int]:
    folders = [folder for folder in list_folders(ws.root) if ws.agent.inside(folder)]
    out: list[Sweep | tuple[str, str]] = []
    for folder in folders[:_MOST]:
        try:
            out.append(_read(folder))
        except TrackwalkerError as e:
            out.append((clip(one_line(folder.name), 120), clip(one_line(str(e)), 300)))
    return out, max(len(folders) - _MOST, 0)


def _one(ws: WebWorkspace, name: str) -> Sweep:
    for folder in list_folders(ws.root):
        if folder.name == name and ws.agent.inside(folder):
            return _read(folder)
    raise JobNotFoundError(f"no sweep '{clip(one_line(name), 80)}' in this workspace; the list of sweeps shows what is there")


def _read(folder: Path) -> Sweep:
    journal = folder / JOURNAL
    held = journal.stat() if journal.exists() else None
    state = (held.st_size, held.st_mtime_ns, running(folder)) if held else (0, 0, running(folder))
    return _KEPT.get(folder, state, lambda: _make(folder, state[2]))


def _make(folder: Path, runner: str) -> Sweep:
    plan, state = load_plan(folder), load_state(folder)
    # What the strategy says of the results now: also right for a sweep that is half-way, or was killed.
    try:
        return Sweep(plan, state, build(plan.kind, plan.request).conclude(state.done), "", runner)
    except TrackwalkerError as e:
        return Sweep(plan, state, None, clip(one_line(str(e)), 300), runner)
    except (ImportError, KeyError, TypeError, ValueError) as e:
        return Sweep(plan, state, None, f"its conclusion cannot be worked out here ({type(e).__name__})", runner)
