"""A performance report as Markdown, for a ticket."""

from __future__ import annotations

from trackwalker.perf.result import PerfReport
from trackwalker.report.perf_view import Grid, grids, summary
from trackwalker.report.text import one_line

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"})


def perf_markdown(report: PerfReport) -> str:
    """The same parts as the terminal view."""
    lines = [f"# Performance of job {plain(report.job.id)}", "", plain(report.headline), ""]
    if report.fixes:
        lines += ["## What to fix first", ""]
        for number, fix in enumerate(report.fixes, 1):
            of = "step" if fix.of == "step" else "run"
            lines.append(f"{number}. {plain(fix.says)} (up to {100 * fix.gain:.1f} % of the {of}): {plain(fix.do)}  ")
            lines.append(f"   *{plain(fix.evidence)}*")
        lines.append("")
    lines += ["## Figures", "", "| what | value |", "|---|---|"]
    lines += [f"| {plain(name)} | {plain(value)} |" for name, value in summary(report)]
    for grid in grids(report):
        lines += ["", *grid_lines(grid)]
    if report.missing:
        lines += ["", "## Not shown", ""]
        lines += [f"- {plain(m.what)}: {plain(m.why)}. {plain(m.do)}" for m in report.missing]
    return "\n".join(lines) + "\n"


def grid_lines(grid: Grid) -> list[str]:
    """One table, with its title."""
    rule = "".join("---:|" if number in grid.numbers else "---|" for number in range(len(grid.header)))
    lines = [f"## {plain(grid.title)}", "", f"| {' | '.join(map(plain, grid.header))} |", f"|{rule}"]
    lines += [f"| {' | '.join(map(plain, row))} |" for row in grid.rows]
    return [*lines, "", plain(grid.note)] if grid.note else lines


def plain(text: str) -> str:
    """Names from a trace are data: they must not become markup."""
    return one_line(text).translate(_SPECIAL)
