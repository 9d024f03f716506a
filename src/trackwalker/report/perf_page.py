"""A performance report as one self-contained page: one script and one style, both named by their hash, no network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trackwalker.perf.diff_result import DiffReport
from trackwalker.perf.lanes import StepLanes
from trackwalker.perf.result import Missing, PerfReport
from trackwalker.report.html import environment, inline_hash
from trackwalker.report.perf_charts import Panel
from trackwalker.report.perf_diff_panels import diff_panels, diff_tiles, speed_words
from trackwalker.report.perf_panels import PLACES, panels, step_bar, tiles
from trackwalker.report.text import clip, one_line

_ON_TOP = 3  # fixes that are told in full on the first screen


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
    allowed = [f"style-src '{style}'", f"script-src '{script}'", "img-src data:"]
    policy = "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"])
    return environment().get_template(template).render(panels=made, policy=policy, assets=assets, **facts)
