"""The verdict as Markdown, for a ticket."""

from __future__ import annotations

from trackwalker.diagnose.verdict import Cause, Evidence, Verdict
from trackwalker.job.causes import cause_label, cause_name
from trackwalker.report.changed import deviation_line
from trackwalker.report.text import one_line, plain
from trackwalker.report.words import further_facts, lacking

_MOST_HOSTS = 16


def markdown(verdict: Verdict) -> str:
    """One page: what happened, who, since when, the evidence, what was ruled out, what to do."""
    evidence = {e.id: e for e in verdict.evidence}
    job = verdict.job
    lines = [f"# {verdict.outcome}: job {plain(job.id or '')} ({verdict.status})", "", plain(verdict.summary), ""]
    if verdict.window.start:
        lines += [
            f"{job.nodes or '?'} nodes, {job.gpus or '?'} GPUs, {verdict.window.start} to {verdict.window.end}",
            "",
        ]
    if further := further_facts(verdict):
        lines += [*(f"- {plain(name)}: {plain(value)}" for name, value in further), ""]
    for cause in verdict.causes:
        lines += _cause(cause, evidence)
    if verdict.actions:
        lines += ["## Do next", ""]
        for number, action in enumerate(verdict.actions, start=1):
            asks = " **(needs approval)**" if action.needs_approval else ""
            where = f" {', '.join(action.hosts)}" if action.hosts else ""
            lines.append(f"{number}. `{action.do}`{plain(where)}{asks}: {plain(action.why)}")
        lines.append("")
    if verdict.deviations:
        lines += ["## What deviates", ""]
        by = (
            f"explained by {cause_name(d.explained_by)}" if d.explained_by else "nothing explains it"
            for d in verdict.deviations
        )
        lines += [f"- {plain(deviation_line(d, why))}" for d, why in zip(verdict.deviations, by, strict=True)]
        lines.append("")
    if verdict.ruled_out:
        lines += ["## Ruled out", ""]
        for item in verdict.ruled_out:
            says = "; ".join(plain(evidence[e].says) for e in item.evidence[:2] if e in evidence)
            lines.append(f"- {plain(cause_label(item.cause))}: {says}")
        lines.append("")
    if verdict.untestable:
        lines += ["## Could not be tested", ""]
        lines += [
            f"- {plain(cause_label(u.cause))}: not measured: {plain(', '.join(lacking(u.missing)))}"
            for u in verdict.untestable
        ]
        lines.append("")
    if doubtful := [q for q in verdict.data_quality if not q.ok]:
        lines += ["## Is the evidence to be trusted", ""]
        for q in doubtful:
            more = " and more" if len(q.hosts) > _MOST_HOSTS else ""
            whose = f" ({plain(', '.join(q.hosts[:_MOST_HOSTS]))}{more})" if q.hosts else ""
            lines.append(f"- {plain(q.check)}{whose}: {plain(q.says)}")
        lines.append("")
    elif verdict.data_quality:
        lines += [f"All {len(verdict.data_quality)} checks of the evidence itself passed.", ""]
    return "\n".join(lines).rstrip()


def _cause(cause: Cause, evidence: dict[str, Evidence]) -> list[str]:
    lines = [f"## {cause.role}: {plain(cause_label(cause.cause))} ({cause.confidence:.0%})", ""]
    culprits = [*cause.hosts, *cause.gpus, *cause.devices]
    if culprits:
        lines.append(f"- culprits: {plain(', '.join(culprits))}")
    if cause.onset is not None:
        step = f", step {cause.onset.step}" if cause.onset.step is not None else ""
        lines.append(f"- since {cause.onset.time}{step}")
    if cause.magnitude is not None:
        m = cause.magnitude
        lines.append(f"- {m.of}: {m.from_:g} to {m.to:g} ({m.change:+.1%})")
    for number in cause.evidence:
        if number in evidence:
            item = evidence[number]
            lines.append(f"- {plain(item.says)}  ")
            lines.append(f"  `{one_line(item.source).replace('`', '')}`")
    return [*lines, ""]
