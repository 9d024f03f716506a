"""The report of a sweep as data: what was asked, every job, what follows. Every view is made from it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trackwalker.job.whole import write_whole
from trackwalker.report.charts.plots import Scale, drawable, line_path, px, value_ticks
from trackwalker.report.text import clip_middle, json_visible, one_line
from trackwalker.sweep.budget import budget_of, spent
from trackwalker.sweep.model import SCHEMA, Plot, Strategy, Table
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
            {"trial": without_secrets(asdict(run.trial)), **asdict(run.result), "again": run.again}
            for run in state.runs.values()
            if run.result
        ],
        "open": [{"key": run.trial.key, "job": run.job, "attempt": run.attempt} for run in state.open_runs],
        "conclusion": asdict(conclusion),
    }


def standing(state: State, running: str) -> str:
    """One word: running, interrupted (resume continues it), finished, stopped."""
    if state.ended is not None:
        return "stopped" if state.stop else "finished"
    return "running" if running else "interrupted"


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
    from trackwalker.sweep.report_text import markdown

    conclusion = strategy.conclude(state.done)
    names = []
    for number, plot in enumerate(conclusion.plots, 1):
        names.append(f"plot-{number}.svg")
        write_whole(plan.folder / names[-1], svg(plot))
    write_whole(plan.folder / "report.json", dumps(report(plan, state, strategy, running)))
    write_whole(plan.folder / "report.md", markdown(plan, state, conclusion, strategy.at_most(), running, names))
    return plan.folder / "report.md"


def dumps(said: dict[str, Any]) -> str:
    """One JSON object; what a log said cannot move the reader's terminal."""
    return json_visible(json.dumps(said, indent=1, default=str)) + "\n"


_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 744, 40, 270  # as plot.svg has them
_MOST_NAMES = 24


def svg(plot: Plot) -> str:
    """The figure as a file of its own (plot.svg); colours work on white, which it brings along."""
    from jinja2 import Environment, PackageLoader  # large, and only a sweep that has come to results draws

    template = Environment(loader=PackageLoader("trackwalker.sweep", ""), autoescape=True).get_template("plot.svg")
    low, high = (list(side) + [None] * (len(plot.y) - len(side)) for side in (plot.low, plot.high))
    values = [v for v in (*plot.y, *low, *high) if drawable(v)]
    labels = [one_line(text) for text in (plot.title, plot.x_label, plot.y_label)]
    if not values:
        return template.render(labels=labels, points=None) + "\n"
    room = 0.08 * (max(values) - min(values)) or 0.05 * abs(max(values)) or 1.0
    y = Scale(min(values) - room, max(values) + room, _BOTTOM, _TOP)
    numeric = all(isinstance(x, (int, float)) for x in plot.x)
    places = [float(x) for x in plot.x] if numeric else [float(i) for i in range(len(plot.x))]
    pad = 0.06 * (max(places) - min(places)) or 0.5
    x = Scale(min(places) - pad, max(places) + pad, _LEFT, _RIGHT)
    names = [(px(x(tick.value)), tick.label) for tick in value_ticks(x.lo, x.hi, 8)] if numeric else []
    if not numeric:
        every = -(-len(places) // _MOST_NAMES)
        names = [(px(x(at)), clip_middle(one_line(str(plot.x[int(at)])), 14)) for at in places[::every]]
    known = [(x(at), y(v)) for at, v in sorted(zip(places, plot.y, strict=True), key=lambda p: p[0]) if drawable(v)]

    def height(value: float | None) -> str:
        return px(y(value)) if drawable(value) else ""

    return (
        template.render(
            labels=labels,
            ticks=[(height(tick.value), px(y(tick.value) + 4), tick.label) for tick in value_ticks(y.lo, y.hi)],
            names=names,
            slanted=not numeric and len(places) > 8,
            path=line_path(known) if numeric else "",
            points=[
                (px(x(at)), height(plot.y[i]), height(low[i]), height(high[i]), "m" if i in plot.marked else "p")
                for i, at in enumerate(places)
            ],
        )
        + "\n"
    )
