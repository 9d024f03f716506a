"""A comparison of two performance reports, in a terminal or as Markdown."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from trackwalker.perf.analysis.diff_result import Changed, DiffReport, OpDelta
from trackwalker.perf.analysis.result import short_path
from trackwalker.report.perf.terminal import show
from trackwalker.report.perf.view import BUCKETS, Grid, grid_lines, ms
from trackwalker.report.text import clip, clip_middle, one_line, plain

_ROWS = 15


def render_diff(report: DiffReport, console: Console) -> None:
    """Print one comparison."""
    console.print(Text.assemble(("PERF DIFF", "bold cyan"), f"  A {report.a.id}  B {report.b.id}"))
    console.print(Text(one_line(report.summary), style="bold"))
    for mismatch in report.mismatches:
        style = "bold red" if mismatch.refuse else "yellow"
        says = f"{mismatch.what}: {clip(mismatch.a, 60)} against {clip(mismatch.b, 60)}: {mismatch.why}"
        console.print(Text(one_line(says), style=style))
    for grid in diff_grids(report):
        show(grid, console)
    for line in report.missing:
        console.print(Text(f"\nnot shown: {one_line(line)}", style="dim"))


def diff_markdown(report: DiffReport) -> str:
    """The same as Markdown."""
    lines = [f"# Performance: {plain(report.b.id)} (B) against {plain(report.a.id)} (A)", "", plain(report.summary), ""]
    lines += [f"- {plain(m.what)}: {plain(m.a)} against {plain(m.b)}: {plain(m.why)}" for m in report.mismatches]
    for grid in diff_grids(report):
        lines += ["", *grid_lines(grid)]
    return "\n".join([*lines, *(f"\nNot shown: {plain(m)}" for m in report.missing)]) + "\n"


def diff_grids(report: DiffReport, most: int = _ROWS) -> list[Grid]:
    """Settings, waterfall, operations, collectives, program; at most so many rows of each."""
    out = []
    if report.config:
        out.append(_changes("Settings that differ", report.config, most))
    if report.waterfall:
        rows = []
        for row in report.waterfall:
            bounds = "" if row.low_s is None or row.high_s is None else f"{_ms(row.low_s)} to {_ms(row.high_s)}"
            cells = [BUCKETS.get(row.name, row.name), ms(row.a_s), ms(row.b_s), _ms(row.delta_s)]
            rows.append([*cells, f"{100 * row.share:+.1f} %", bounds])
        a, b = sum(r.a_s for r in report.waterfall), sum(r.b_s for r in report.waterfall)
        rows.append(["step", ms(a), ms(b), _ms(b - a), f"{100 * (b / a - 1):+.1f} %" if a else "", ""])
        header = ["where", "A ms", "B ms", "difference ms", "of A's step", "95 % bounds ms"]
        out.append(Grid("Waterfall of the step", header, rows, {1, 2, 3, 4, 5}))
    for title, ops in (("Operations that changed", report.ops), ("Collectives that changed", report.collectives)):
        if ops:
            out.append(_ops(title, ops, most))
    if report.program:
        out.append(_changes("Compiled program", report.program, most))
    return out


def _changes(title: str, changes: list[Changed], most: int) -> Grid:
    rows = [[clip(c.name, 50), *(clip("not stated" if v is None else v, 60) for v in (c.a, c.b))] for c in changes]
    note = f"{len(rows) - most} more in --json" if len(rows) > most else ""
    return Grid(title, ["what", "A", "B"], rows[:most], set(), note)


def _ops(title: str, ops: list[OpDelta], most: int) -> Grid:
    rows = [
        [
            clip_middle(one_line(short_path(o.path)), 60) + (f" (only in {o.only})" if o.only else ""),
            f"{o.a_count:.4g}", f"{o.b_count:.4g}", ms(o.a_s), ms(o.b_s), _ms(o.delta_s),
            _ms(o.count_effect_s), _ms(o.time_effect_s),
        ]
        for o in ops[:most]
    ]  # fmt: skip
    header = ["operation", "A calls", "B calls", "A ms", "B ms", "difference", "by count", "by time"]
    note = f"{len(ops) - most} more in --json" if len(ops) > most else ""
    return Grid(title, header, rows, set(range(1, 8)), note)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:+.4g}"
