"""The report of a sweep for people: on the terminal and as Markdown for a ticket."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from trackwalker.report.text import one_line, plain
from trackwalker.report.words import utc
from trackwalker.sweep.budget import budget_of, spent
from trackwalker.sweep.model import Conclusion, Table
from trackwalker.sweep.plan import Plan
from trackwalker.sweep.report import results_table, standing
from trackwalker.sweep.state import State


def render(plan: Plan, state: State, conclusion: Conclusion, at_most: int, running: str, console: Console) -> None:
    """Print it."""
    console.print(f"[bold]{escape(one_line(conclusion.headline))}[/bold]")
    console.print(escape(_head(plan, state, at_most, running)))
    for title, lines in _parts(plan, state, conclusion, running):
        console.print(f"\n[bold]{title}[/bold]")
        for line in lines:
            console.print(f"  {escape(one_line(line))}", soft_wrap=True)
    for table in _tables(state, conclusion):
        drawn = RichTable(title=escape(table.title), title_justify="left", box=None, pad_edge=False)
        for column in table.columns:
            drawn.add_column(escape(column), overflow="fold")
        for row in table.rows:
            drawn.add_row(*(escape(one_line(cell)) for cell in row))
        console.print()
        console.print(drawn)
    if conclusion.recipe:
        console.print("\n[bold]Recipe[/bold]")
        console.print(escape(conclusion.recipe.rstrip()), soft_wrap=True)


def markdown(
    plan: Plan, state: State, conclusion: Conclusion, at_most: int, running: str, plots: Sequence[str] = ()
) -> str:
    """The same as a Markdown page; `plots` are the files of its figures."""
    rows = [f"# {plain(conclusion.headline)}", "", plain(_head(plan, state, at_most, running)), ""]
    for title, lines in _parts(plan, state, conclusion, running):
        rows += [f"## {title}", "", *(f"- {plain(line)}" for line in lines), ""]
    for table in _tables(state, conclusion):
        rows += [f"## {plain(table.title)}", "", _cells(table.columns), _cells(["---"] * len(table.columns), False)]
        rows += [*(_cells(row) for row in table.rows), ""]
    for plot, name in zip(conclusion.plots, plots, strict=False):
        rows += [f"![{plain(plot.title)}]({name})", ""]
    if conclusion.recipe:
        rows += ["## Recipe", "", "```yaml", conclusion.recipe.rstrip().replace("```", "` ` `"), "```", ""]
    return "\n".join(rows)


def _cells(cells: Iterable[str], text: bool = True) -> str:
    return "| " + " | ".join(plain(cell) if text else cell for cell in cells) + " |"


def _head(plan: Plan, state: State, at_most: int, running: str) -> str:
    how = standing(state, running)
    said = f"sweep {plan.id}, {how}"
    said += f": {state.stop}" if state.stop else f" ({running})" if running and how == "running" else ""
    jobs = len([run for run in state.runs.values() if run.job])
    end = state.ended if state.ended is not None else time.time()
    allowed = budget_of(plan, state)
    budget = f" of {allowed:g}" if allowed is not None else ""
    said += (
        f"; {jobs} jobs (at most {at_most}), {spent(state, end):.3g}{budget} node-hours, begun {utc(plan.created)} UTC"
    )
    return said


def _parts(plan: Plan, state: State, conclusion: Conclusion, running: str) -> list[tuple[str, list[str]]]:
    found = []
    if conclusion.recommend:
        found.append(("Recommended", ["-- " + " ".join(f"{k}={v}" for k, v in conclusion.recommend.items())]))
    if conclusion.exclude or conclusion.pairs:
        lines = [f"leave out: {', '.join(conclusion.exclude)}"] if conclusion.exclude else []
        found.append(("Exclude", lines + [f"bad link: {a} - {b}" for a, b in conclusion.pairs]))
    found += [("Evidence", list(conclusion.evidence))] if conclusion.evidence else []
    found += [("What this does not prove", list(conclusion.caveats))] if conclusion.caveats else []
    if state.replaced:
        found.append(("Faulty nodes", [f"{node}: {spare} took its place" for node, spare in state.replaced.items()]))
    if standing(state, running) in ("interrupted", "stopped"):
        found.append(("Next", [f"trackwalker sweep resume {plan.id}"]))
    return found


def _tables(state: State, conclusion: Conclusion) -> list[Table]:
    jobs = results_table(state)
    return [table for table in (*conclusion.tables, jobs) if table.rows]
