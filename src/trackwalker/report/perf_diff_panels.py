"""The panels of the page that compares two runs."""

from __future__ import annotations

from trackwalker.perf.diff_result import DiffReport
from trackwalker.report.perf_charts import Item, Panel, Sheet, duration
from trackwalker.report.perf_diff import diff_grids
from trackwalker.report.perf_falls import falls

_PANELS = {
    "Waterfall of the step": ("waterfall", "Waterfall"),
    "Operations that changed": ("operations", "Operations"),
    "Collectives that changed": ("collectives", "Collectives"),
    "Settings that differ": ("settings", "Settings"),
    "Compiled program": ("program", "Program"),
}


def diff_panels(report: DiffReport) -> list[Panel]:
    """A panel for each table that has rows, the waterfall with its drawing."""
    grids = {g.title: g for g in diff_grids(report, most=200)}
    made = []
    for title, (name, tab) in _PANELS.items():
        if title not in grids:
            continue
        grid = grids[title]
        sheet = Sheet(grid.title, grid.header, grid.rows, grid.numbers, grid.note, search=len(grid.rows) > 20)
        drawing: list[Item] = [falls(report.waterfall)] if name == "waterfall" else []
        made.append(Panel(name, tab, [*drawing, sheet]))
    return made


def diff_tiles(report: DiffReport) -> list[tuple[str, str, str]]:
    """The headline figures of a comparison."""
    rows: list[tuple[str, str, str]] = []
    if report.speed is not None:
        s = report.speed
        bounds = f"95 % {100 * s.low:+.1f} to {100 * s.high:+.1f} %"
        rows.append((s.of, f"{100 * s.change:+.1f} %", f"{s.a:,.5g} to {s.b:,.5g}, {bounds}"))
    if report.step_delta_s is not None and report.waterfall:
        a = sum(row.a_s for row in report.waterfall)
        b = sum(row.b_s for row in report.waterfall)
        change = f"{100 * (b / a - 1):+.1f} %" if a else ""
        rows.append(("traced step", change, f"{duration(a)} to {duration(b)}"))
        worst = max(report.waterfall, key=lambda row: abs(row.delta_s))
        sure = "beyond noise" if worst.certain else "within noise"
        rows.append(("largest change", worst.name.replace("_", " "), f"{1e3 * worst.delta_s:+.4g} ms a step, {sure}"))
    return rows


def speed_words(report: DiffReport) -> str:
    """Whether the change of speed is one."""
    s = report.speed
    if s is None:
        return ""
    if s.certain:
        return "The interval leaves zero out: the change is real."
    seen = f" A change of {100 * s.detectable:.1f} % or more would have been seen." if s.detectable is not None else ""
    return f"The interval holds zero: no change is proven.{seen}"
