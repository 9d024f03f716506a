"""A performance report as one self-contained page: one script and one style, both named by their hash, no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trackwalker.perf.analysis.diff_result import DiffReport, Fall
from trackwalker.perf.analysis.result import Missing, PerfReport
from trackwalker.perf.analysis.step_lanes import StepLanes
from trackwalker.report.charts.plots import Scale, px
from trackwalker.report.html import environment, inline_hash, policy_of
from trackwalker.report.perf.charts import Item, Panel, Sheet, duration
from trackwalker.report.perf.diff import diff_grids
from trackwalker.report.perf.panels import PLACES, panels, step_bar, tiles
from trackwalker.report.perf.view import BUCKETS
from trackwalker.report.text import clip, one_line

_ON_TOP = 3  # fixes that are told in full on the first screen


# The panels of the page that compares two runs.
_PANELS = {
    "Waterfall of the step": ("waterfall", "Waterfall"),
    "Operations that changed": ("operations", "Operations"),
    "Collectives that changed": ("collectives", "Collectives"),
    "Settings that differ": ("settings", "Settings"),
    "Compiled program": ("program", "Program"),
}


# The waterfall from one run's step to the other's, as geometry.
_LEFT, _RIGHT, _TALL = 200, 900, 26


@dataclass
class FallRow:
    """One bar: the whole step of A or B, or what a bucket adds or takes."""

    label: str
    y: str
    text_y: str
    x: str
    width: str
    css: str
    value: str
    value_x: str


@dataclass
class Falls:
    """From A's step down or up to B's; the bars in between add up to the difference."""

    kind = "falls"
    says: str
    width: int
    height: int
    rows: list[FallRow]


def falls(waterfall: Sequence[Fall]) -> Falls:
    """The drawing; its axis begins where the smallest total does not vanish."""
    a, b = sum(row.a_s for row in waterfall), sum(row.b_s for row in waterfall)
    at, stops = a, [a]
    for row in waterfall:
        at += row.delta_s
        stops.append(at)
    # From zero the change would be a hair; the words beside each bar give the whole.
    spread = max(stops) - min(stops)
    low = max(min(stops) - max(spread, 0.02 * a), 0.0)
    x = Scale(low, max(stops) or 1.0, _LEFT, _RIGHT)
    rows = [_bar(0, "A: step", low, a, "f-whole", duration(a), x)]
    at = a
    for n, row in enumerate(waterfall, 1):
        moved = abs(row.delta_s) > 1e-6 * a
        css = "f-same" if not moved else "f-worse" if row.delta_s > 0 else "f-better"
        sure = "" if row.certain else " (within noise)"
        said = f"{1e3 * row.delta_s:+.4g} ms{sure}" if moved else "the same"
        lo, hi = min(at, at + row.delta_s), max(at, at + row.delta_s)
        rows.append(_bar(n, BUCKETS.get(row.name, row.name), lo, hi, css, said, x))
        at += row.delta_s
    rows.append(_bar(len(rows), "B: step", low, b, "f-whole", duration(b), x))
    says = "; ".join(f"{row.label} {row.value}" for row in rows)
    return Falls(says, 1080, _TALL * len(rows) + 6, rows)


def _bar(n: int, label: str, lo: float, hi: float, css: str, value: str, x: Scale) -> FallRow:
    begin, width = x(lo), max(x(hi) - x(lo), 1.5)
    y = 4 + n * _TALL
    return FallRow(
        clip(one_line(label), 30), px(y), px(y + 14), px(begin), px(width), css, value, px(begin + width + 8)
    )


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


@dataclass(frozen=True)
class Assets:
    """Addresses of the style and the script, for a server that allows nothing inline, and of the page to go back to."""

    style: str
    script: str
    back: str


def perf_page(report: PerfReport, lanes: StepLanes | None = None, assets: Assets | None = None) -> str:
    """The page of one run; self-contained unless a server gives the style and the script."""
    made = panels(report, lanes)
    there = {panel.id: panel.title for panel in made}
    fixes = [(fix, PLACES.get(fix.rule) if PLACES.get(fix.rule) in there else None) for fix in report.fixes]
    job = report.job
    counts = ((job.nodes, "node"), (job.ranks, "rank"), (job.devices, "traced device"))
    about = [f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in counts if n]
    name = job.model or (job.name if job.name != job.id else "")
    return _render(
        "perf.html.j2",
        made,
        assets,
        title=f"Performance of job {clip(one_line(job.id), 80)}",
        about=[one_line(x) for x in (name, *about, job.device, job.status) if x],
        report=report,
        missing=[*report.missing, *_undrawn(lanes)],
        fixes=fixes[:_ON_TOP],
        more_fixes=fixes[_ON_TOP:],
        titles=there,
        tiles=tiles(report),
        bar=step_bar(report.trace),
    )


def _undrawn(lanes: StepLanes | None) -> list[Missing]:
    """Why there is no timeline though there are traces."""
    if lanes is None or lanes.devices:
        return []
    why = "; ".join(lanes.left_out) or "the trace files of the report are not there"
    return [Missing(what="timeline", why=why, do="run trackwalker perf where the traces are")]


def diff_page(report: DiffReport) -> str:
    """The page of two runs against each other."""
    return _render(
        "perf_diff.html.j2",
        diff_panels(report),
        None,
        title=f"Performance: {clip(one_line(report.b.id), 60)} against {clip(one_line(report.a.id), 60)}",
        about=[one_line(f"A {report.a.id}"), one_line(f"B {report.b.id}")],
        report=report,
        missing=report.missing,
        tiles=diff_tiles(report),
        speed=speed_words(report),
    )


def page_style() -> str:
    """The style of these pages, as the template includes it."""
    return "".join(environment().get_template(name).render() for name in ("report.css", "perf.css"))


def page_script() -> str:
    """The script of these pages, as the template includes it."""
    return environment().get_template("perf.js").render()


def _render(template: str, made: list[Panel], assets: Assets | None, **facts: Any) -> str:
    # Nothing else is obeyed, whatever a kernel or a host is called.
    style, script = ("self", "self") if assets else (inline_hash(page_style()), inline_hash(page_script()))
    policy = policy_of(f"style-src '{style}'", f"script-src '{script}'")
    return environment().get_template(template).render(panels=made, policy=policy, assets=assets, **facts)
