"""A performance report, a drill or a diff in a terminal: what to fix first, then the figures, then the tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trackwalker.perf.analysis.result import PerfReport
from trackwalker.report.perf.view import Grid, grids, summary
from trackwalker.report.text import one_line

_WIDEST = 120


def render_perf(report: PerfReport, console: Console) -> None:
    """Print one report."""
    width = min(console.width, _WIDEST)
    console.print(Text.assemble(("PERF", "bold cyan"), f"  job {one_line(report.job.id)}"), width=width)
    console.print(Text(one_line(report.headline), style="bold"), width=width)
    if report.fixes:
        console.print(Text("\nWHAT TO FIX FIRST", style="bold"))
        for number, fix in enumerate(report.fixes, 1):
            of = "step" if fix.of == "step" else "run"
            gain = f"up to {100 * fix.gain:.1f} % of the {of}"
            gives = "" if gain.removeprefix("up to ") in fix.says else f"({gain})"  # where that is not said already
            console.print(Text.assemble(f"{number}. {one_line(fix.says)} ", (gives, "green")), width=width)
            console.print(Text(f"   do: {one_line(fix.do)}", style="dim"), width=width)
            console.print(Text(f"   evidence: {one_line(fix.evidence)}", style="dim"), width=width)
    console.print()
    figures(summary(report), console)
    for grid in grids(report):
        show(grid, console)
    if report.missing:
        console.print(Text("\nNOT SHOWN", style="bold"))
        for item in report.missing:
            console.print(Text(f"- {one_line(item.what)}: {one_line(item.why)}"), width=width)
            console.print(Text(f"  {one_line(item.do)}", style="dim"), width=width)


def figures(rows: list[tuple[str, str]], console: Console) -> None:
    """Names and values, one below the other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        grid.add_row(Text(name, style="dim", no_wrap=True), Text(value))
    console.print(grid, width=min(console.width, _WIDEST))


def show(grid: Grid, console: Console) -> None:
    """One table."""
    console.print(Text(f"\n{grid.title.upper()}", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(grid.header):
        table.add_column(
            Text(name, style="dim"), justify="right" if number in grid.numbers else "left", overflow="fold"
        )
    for row in grid.rows:
        table.add_row(*[Text(one_line(cell)) for cell in row])
    console.print(table, width=min(console.width, _WIDEST))
    if grid.note:
        console.print(Text(f"({grid.note})", style="dim"))
