"""The report of a sweep as data: what was asked, every job, what follows. Every view is made from it."""

from __future__ import annotations

import json
import time
from html import escape
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
    from trackwalker.sweep.report import svg
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


_WIDTH, _HEIGHT = 760, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 744, 40, 270
_MOST_NAMES = 24
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.t{font-size:14px;font-weight:600}.g{stroke:#d8dee4}"
    ".l{fill:none;stroke:#57606a;stroke-width:1.5}.i{stroke:#57606a;stroke-width:1.5}.p{fill:#0969da}.m{fill:#cf222e}"
)


def svg(plot: Plot) -> str:
    """The figure as a file of its own; colours work on white, which it brings along."""
    low, high = _padded(plot.low, len(plot.y)), _padded(plot.high, len(plot.y))
    values = [v for v in (*plot.y, *low, *high) if drawable(v)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_text(plot.title)}"><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="t" x="{_LEFT}" y="22">{_text(plot.title)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{_text(plot.x_label)}</text>',
        f'<text x="12" y="{_TOP - 6}">{_text(plot.y_label)}</text>',
    ]
    if not values:
        return "".join([*parts, f'<text x="{_LEFT}" y="150">nothing was measured</text></svg>\n'])
    room = 0.08 * (max(values) - min(values)) or 0.05 * abs(max(values)) or 1.0
    y = Scale(min(values) - room, max(values) + room, _BOTTOM, _TOP)
    for tick in value_ticks(y.lo, y.hi):
        at = px(y(tick.value))
        parts.append(f'<line class="g" x1="{_LEFT}" x2="{_RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{px(y(tick.value) + 4)}" text-anchor="end">{tick.label}</text>')
    return "".join([*parts, *_points(plot, y, low, high), "</svg>\n"])


def _points(plot: Plot, y: Scale, low: list[float | None], high: list[float | None]) -> list[str]:
    numeric = all(isinstance(x, (int, float)) for x in plot.x)
    places = [float(x) for x in plot.x] if numeric else [float(i) for i in range(len(plot.x))]
    lo, hi = min(places), max(places)
    pad = 0.06 * (hi - lo) or 0.5
    x = Scale(lo - pad, hi + pad, _LEFT, _RIGHT)
    parts, every = [], -(-len(places) // _MOST_NAMES)
    if numeric:
        parts += [_below(x(tick.value), tick.label) for tick in value_ticks(x.lo, x.hi, 8)]
    else:
        names = [clip_middle(one_line(str(name)), 14) for name in plot.x]
        parts += [_below(x(places[i]), names[i], slanted=len(places) > 8) for i in range(0, len(places), every)]
    known = [(x(at), y(v)) for at, v in sorted(zip(places, plot.y, strict=True), key=lambda p: p[0]) if drawable(v)]
    if numeric:
        parts.append(f'<path class="l" d="{line_path(known)}"/>')
    for i, (at, value) in enumerate(zip(places, plot.y, strict=True)):
        if not drawable(value):
            parts.append(f'<text x="{px(x(at))}" y="{_BOTTOM - 4}" text-anchor="middle">✕</text>')
            continue
        down, up = low[i], high[i]
        if drawable(down) and drawable(up):
            parts.append(f'<line class="i" x1="{px(x(at))}" x2="{px(x(at))}" y1="{px(y(down))}" y2="{px(y(up))}"/>')
        kind = "m" if i in plot.marked else "p"
        parts.append(f'<circle class="{kind}" cx="{px(x(at))}" cy="{px(y(value))}" r="4.5"/>')
    return parts


def _below(at: float, text: str, slanted: bool = False) -> str:
    turn = (
        f' transform="rotate(35 {px(at)} {_BOTTOM + 14})" text-anchor="start"' if slanted else ' text-anchor="middle"'
    )
    return f'<text x="{px(at)}" y="{_BOTTOM + 18}"{turn}>{_text(text)}</text>'


def _padded(values: tuple[float | None, ...], size: int) -> list[float | None]:
    return list(values) + [None] * (size - len(values))


def _text(text: str) -> str:
    return escape(one_line(text))
