"""A performance report as one self-contained page: one script and one style, both named by their hash, no network."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from trackwalker.perf.diff_result import DiffReport
from trackwalker.perf.lanes import StepLanes
from trackwalker.perf.result import Missing, PerfReport
from trackwalker.report.html import environment
from trackwalker.report.perf_charts import Panel
from trackwalker.report.perf_diff_panels import diff_panels, diff_tiles, speed_words
from trackwalker.report.perf_panels import PLACES, panels, step_bar, tiles
from trackwalker.report.text import clip, one_line

_ON_TOP = 3  # fixes that are told in full on the first screen


def perf_page(report: PerfReport, lanes: StepLanes | None = None) -> str:
    """The page of one run."""
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
        title=f"Performance: {clip(one_line(report.b.id), 60)} against {clip(one_line(report.a.id), 60)}",
        about=[one_line(f"A {report.a.id}"), one_line(f"B {report.b.id}")],
        report=report,
        missing=report.missing,
        tiles=diff_tiles(report),
        speed=speed_words(report),
    )


def _render(template: str, made: list[Panel], **facts: Any) -> str:
    env = environment()
    # As the template includes them: nothing else is obeyed, whatever a kernel or a host is called.
    style = "".join(env.get_template(name).render() for name in ("report.css", "perf.css"))
    script = env.get_template("perf.js").render()
    allowed = [f"style-src '{_hash(style)}'", f"script-src '{_hash(script)}'", "img-src data:"]
    policy = "; ".join(["default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'"])
    return env.get_template(template).render(panels=made, policy=policy, **facts)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
