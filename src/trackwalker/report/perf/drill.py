"""One operation in depth, in a terminal or as Markdown."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from trackwalker.perf.analysis.drill_result import DrillReport, Execution
from trackwalker.report.perf.terminal import figures, show
from trackwalker.report.perf.view import Grid, grid_lines
from trackwalker.report.text import clip, clip_middle, one_line, plain


def render_drill(report: DrillReport, console: Console) -> None:
    """The table of all that fits, then the dearest in full."""
    console.print(Text.assemble(("PERF DRILL", "bold cyan"), f"  job {one_line(report.job)}  '{one_line(report.op)}'"))
    show(_grid(report), console)
    if report.rows:
        console.print(Text("\nTHE DEAREST", style="bold"))
        figures(_facts(report.rows[0]), console)
    for item in report.missing:
        console.print(Text(f"not shown: {one_line(item.what)}: {one_line(item.why)}", style="dim"))


def drill_markdown(report: DrillReport) -> str:
    """The same as Markdown."""
    lines = [f"# '{plain(report.op)}' in job {plain(report.job)}", "", *grid_lines(_grid(report))]
    if report.rows:
        lines += ["", "## The dearest", "", "| what | value |", "|---|---|"]
        lines += [f"| {plain(name)} | {plain(value)} |" for name, value in _facts(report.rows[0])]
    return "\n".join(lines) + "\n"


def _grid(report: DrillReport) -> Grid:
    header = [
        "kernel",
        "part",
        "device",
        "ms a step",
        "share",
        "calls",
        "median us",
        "p95 us",
        "longest us",
        "under comm",
    ]
    rows = [
        [
            clip_middle(r.name, 40), f"{r.part} {r.phase}", clip_middle(r.device, 24), f"{1e3 * r.seconds:.4g}",
            f"{100 * r.share:.1f} %", f"{r.calls:.4g}", *(f"{1e6 * t:.4g}" for t in (r.median_s, r.p95_s, r.longest_s)),
            f"{100 * r.under_comm:.0f} %",
        ]
        for r in report.rows
    ]  # fmt: skip
    note = f"{report.more} more fit; ask for a longer part of the name" if report.more else ""
    return Grid("Executions", header, rows, set(range(3, 10)), note)


def _facts(row: Execution) -> list[tuple[str, str]]:
    facts = [
        ("kernel", clip(row.name, 120)),
        ("operation", f"{row.op} {row.opcode} {row.shape}".strip()),
        ("kind", row.kind),
        ("part", f"{row.part} {row.phase}"),
        ("path", row.path),
        ("source", row.source),
        ("streams", ", ".join(row.streams)),
    ]
    return [(name, one_line(value)) for name, value in facts if value.strip()]
