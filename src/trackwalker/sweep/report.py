"""The report of a sweep as data: what was asked, every job, what follows. Every view is made from it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from trackwalker.job.whole import write_whole
from trackwalker.report.text import json_visible
from trackwalker.sweep.budget import budget_of, spent
from trackwalker.sweep.model import SCHEMA, Strategy, Table
from trackwalker.sweep.plan import Plan, without_secrets
from trackwalker.sweep.progress import minutes, score
from trackwalker.sweep.state import STOPPED, State


def report(plan: Plan, state: State, strategy: Strategy, running: str = "", now: float | None = None) -> dict[str, Any]:
    """Everything about a sweep, finished or not; `running` says who runs it."""
    now = time.time() if now is None else now
    conclusion = strategy.conclude(state.done)
    return {
        "schema": SCHEMA,
        **plan.shown(),
        "budget_node_hours": budget_of(plan, state),
        "status": standing(state, running),
        "why": state.stop,
        "running": running,
        "ended": state.ended,
        "at_most_jobs": strategy.at_most(),
        "jobs": len([run for run in state.runs.values() if run.job]),
        "node_hours": round(spent(state, now), 4),
        "replaced_nodes": dict(state.replaced),
        "results": [
            _row(run.trial.to_dict(), run.result.to_dict(), run.again) for run in state.runs.values() if run.result
        ],
        "open": [{"key": run.trial.key, "job": run.job, "attempt": run.attempt} for run in state.open_runs],
        "conclusion": conclusion.to_dict(),
    }


def standing(state: State, running: str) -> str:
    """One word: running, interrupted (resume continues it), finished, stopped."""
    if state.ended is not None:
        return "stopped" if state.stop else "finished"
    return "running" if running else "interrupted"


def _row(trial: dict[str, Any], result: dict[str, Any], again: str) -> dict[str, Any]:
    return {"trial": without_secrets(trial), **result, "again": again}


def results_table(state: State) -> Table:
    """Every job in the order of its intent, also those that were repeated."""
    rows = []
    for run in state.runs.values():
        result = run.result
        if result is None:
            continue
        figure = score(result.score) if result.score is not None else ""
        width = (
            f"{score(result.low)} to {score(result.high)}" if result.low is not None and result.high is not None else ""
        )
        end = result.status + (f" ({result.cause})" if result.cause and result.cause != result.status else "")
        end += "" if not run.again else ", not counted" if run.again.startswith(STOPPED) else ", repeated"
        rows.append(
            (
                run.trial.key,
                result.job,
                ",".join(run.trial.nodes) or "here",
                figure,
                width,
                end,
                minutes(result.minutes),
            )
        )
    columns = ("trial", "job", "nodes", "tokens/s/device", "95 % interval", "end", "time")
    return Table("Jobs", columns, tuple(rows))


def save(plan: Plan, state: State, strategy: Strategy, running: str = "") -> Path:
    """Write report.json, report.md and the plots into the sweep's folder; returns the Markdown's path."""
    from trackwalker.sweep.report_plot import svg
    from trackwalker.sweep.report_text import markdown

    conclusion = strategy.conclude(state.done)
    names = []
    for number, plot in enumerate(conclusion.plots, 1):
        names.append(f"plot-{number}.svg")
        _write(plan.folder / names[-1], svg(plot))
    _write(plan.folder / "report.json", dumps(report(plan, state, strategy, running)))
    _write(plan.folder / "report.md", markdown(plan, state, conclusion, strategy.at_most(), running, names))
    return plan.folder / "report.md"


def dumps(said: dict[str, Any]) -> str:
    """One JSON object; what a log said cannot move the reader's terminal."""
    return json_visible(json.dumps(said, indent=1, default=str)) + "\n"


def _write(path: Path, text: str) -> None:
    write_whole(path, text)
