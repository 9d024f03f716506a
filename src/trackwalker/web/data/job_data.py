"""A verdict as the job page shows it: every claim with the link that gives it back, every advice as a command."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Evidence, Verdict
from trackwalker.job.cause_names import cause_label
from trackwalker.job.layout import Job
from trackwalker.logs.failures.findings import Finding
from trackwalker.report import view, words
from trackwalker.report.onsets import in_order
from trackwalker.report.text import clip, one_line
from trackwalker.web.data.job_data_commands import commands, next_command
from trackwalker.web.data.query import pinned, unpinned
from trackwalker.web.pages.render import job_url

_LINE = re.compile(r"^(?P<file>[^:\s]+):(?P<line>\d+)$")
_FILE = re.compile(r"^(?P<file>[^:\s]+\.(?:log|out|err)): ")
_METRIC = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^{}]*\})?")
_PLAIN_MATCHER = re.compile(r'[a-zA-Z_][a-zA-Z0-9_]*(?:=|!=|=~|!~)"[^"\\{}]{0,80}"')
_WHOSE = ("host=", "instance=", "host=~", "gpu=", "gpu=~", "device=", "rank=", "job=")
_CARDS = {"incident": "bad", "expected": "note", "healthy": "good", "insufficient-evidence": "unknown"}
_GOOD = ("completed", "running", "initialising", "soft-success")


@dataclass(frozen=True)
class Link:
    """Where a claim comes from: its address, what to call it, and the query where it is one."""

    url: str
    text: str
    query: str = ""
    instant: bool = False
    over_time: bool = False


def evidence_links(job: Job, item: Evidence) -> list[Link]:
    """The query at its own moment and over time, the log line, or the part of the page that shows it."""
    source = one_line(item.source)
    if item.kind == "metric":
        at_once = pinned(source)
        found = [query_link(job, source, "run this query", instant=at_once)]
        whole = replace(query_link(job, unpinned(source), "over time"), over_time=True)
        return [*found, whole] if at_once else [replace(found[0], over_time=True)]
    if match := _LINE.match(source):
        return [log_link(job, match["file"], int(match["line"]), f"line {int(match['line']):,}")]
    if item.kind == "log" and (match := _FILE.match(source)):
        return [log_link(job, match["file"], None, "log")]
    if item.kind == "progress":
        return [Link("#timeline", "timeline")]
    return [Link("#events", "events")] if source.startswith("events.jsonl") else []


def query_link(job: Job, promql: str, text: str, instant: bool = False) -> Link:
    """The query page with a question filled in."""
    asked = {"q": promql, **({"mode": "instant"} if instant else {})}
    return Link(f"{job_url(job.id, 'query')}?{urlencode(asked)}", text, promql, instant)


def log_link(job: Job, file: str, line: int | None, text: str) -> Link:
    """A line of a log."""
    asked = {"file": file, **({"line": str(line)} if line else {})}
    return Link(f"{job_url(job.id, 'log')}?{urlencode(asked)}", text)


def verdict_view(job: Job, verdict: Verdict, seen: Triage | None) -> dict[str, Any]:
    """What the first screen and the evidence below it show of a verdict."""
    verdict = in_order(verdict)
    items, refs, left_out = view.evidence(verdict)
    known: dict[str, Evidence] = {}
    for item in verdict.evidence:
        known.setdefault(clip(one_line(item.id), 24), item)
    by_id = {item.id: item for item in items}
    told = [(item, evidence_links(job, known[item.id])) for item in items]
    cited = {clip(one_line(i), 24) for cause in verdict.causes for i in cause.evidence}
    roots = [cause for cause in view.causes(verdict, refs) if cause.root]
    return {
        "v": verdict,
        "card": _CARDS[verdict.outcome],
        "outcome": words.OUTCOMES[verdict.outcome],
        "summary": clip(one_line(verdict.summary), 1500),
        "causes": view.causes(verdict, refs),
        "roots": roots,
        "culprits": [clip(one_line(host), 120) for host in words.culprits(verdict)[:24]],
        "more_culprits": max(0, len(words.culprits(verdict)) - 24),
        "commands": commands(job, verdict, seen),
        "reasons": [
            (by_id[r.id], evidence_links(job, known[r.id])) for c in roots[:1] for r in c.refs[:3] if r.id in by_id
        ],
        "evidence": sorted(
            (pair for pair in told if pair[0].id in cited), key=lambda pair: _place(pair[0].id, verdict)
        ),
        "more_evidence": [pair for pair in told if pair[0].id not in cited],
        "evidence_left_out": left_out,
        "ruled_out": [
            (clip(cause_label(r.cause), 80), refs.of(r.evidence), _why(r.evidence, known)) for r in verdict.ruled_out
        ],
        "failed_checks": [check for check in verdict.data_quality if not check.ok],
        "passed_checks": [check for check in verdict.data_quality if check.ok],
        "progress": _progress(verdict),
        "metrics": telling_metrics(verdict),
    }


def _progress(verdict: Verdict) -> list[tuple[str, str]]:
    """How far and how fast; of a run that had two speeds both, as a median between them was never measured."""
    speeds = [c.magnitude for c in verdict.roots if c.magnitude is not None and c.magnitude.of == "tgs"]
    rows = words.progress_facts(verdict.progress)
    if not speeds:
        return rows
    both = f"{words.number(speeds[0].from_)} → {words.number(speeds[0].to)} tokens/s/device"
    return [(name, both if name == "throughput" else value) for name, value in rows if name != "step time"]


def _place(item: str, verdict: Verdict) -> tuple[int, int]:
    """Where the causes cite it: what the first root rests on comes first, in its own order."""
    causes = sorted(verdict.causes, key=lambda cause: cause.role != "root")
    at = [(n, ids.index(item)) for n, c in enumerate(causes) if item in (ids := [_shown_id(i) for i in c.evidence])]
    return min(at, default=(len(causes), 0))


def _shown_id(item: str) -> str:
    return clip(one_line(item), 24)


def _why(ids: list[str], known: dict[str, Evidence]) -> str:
    """Why a cause is ruled out, in the words of its first evidence."""
    return next((clip(one_line(known[i].says), 240) for i in ids if i in known), "")


def telling_metrics(verdict: Verdict) -> list[str]:
    """The metrics that the root causes rest on, in the order of the verdict: what to draw first."""
    cited = [i for cause in verdict.roots for i in cause.evidence]
    by_id = {item.id: item for item in verdict.evidence}
    sources = [by_id[i].source for i in cited if i in by_id and by_id[i].kind == "metric"]
    found = [_narrowed(m) for s in sources for m in _METRIC.finditer(s) if "_" in m[1] and m[1] not in _FUNCTIONS]
    return list(dict.fromkeys(found))[:12]


def _narrowed(match: re.Match[str]) -> str:
    """A metric as the evidence picks it, without whose it is: of several clocks of a GPU only one fell."""
    kept = [m for m in _PLAIN_MATCHER.findall(match[2] or "") if not m.startswith(_WHOSE)]
    return f"{match[1]}{{{','.join(kept)}}}" if kept else match[1]


# PromQL's own words with an underscore; a name that is no metric of the job is left out later anyway.
_FUNCTIONS = frozenset(
    [
        f"{what}_over_time"
        for what in ("avg", "min", "max", "sum", "count", "quantile", "stddev", "last", "present", "mad")
    ]
    + ["group_left", "group_right", "label_replace", "label_join", "count_values", "histogram_quantile"]
)


def triage_view(job: Job, seen: Triage) -> dict[str, Any]:
    """What the log alone says: the first screen until the verdict is there."""
    return {
        "card": "note"
        if seen.status in _GOOD and seen.primary is None
        else "bad"
        if seen.status not in _GOOD
        else "warn",
        "status": seen.status,
        "summary": clip(one_line(seen.summary), 1200),
        "findings": [(f, _finding_link(job, f)) for f in seen.failures[:4]],
        "next": [clip(one_line(step), 400) for step in seen.next[:4]],
        "phase": clip(one_line(seen.phase), 120),
        "commands": next_command(job),
    }


def _finding_link(job: Job, finding: Finding) -> Link | None:
    return (
        log_link(job, finding.file, finding.line, f"{one_line(finding.file)}:{finding.line}") if finding.file else None
    )


def header_view(job: Job, seen: Triage | None, verdict: Verdict | None) -> dict[str, Any]:
    """Name, size and status for the head of the page, as far as known."""
    facts = seen.index.facts if seen is not None else None
    nodes = (verdict.job.nodes if verdict else None) or (len(facts.hosts) if facts and facts.hosts else None)
    status = verdict.status if verdict is not None else seen.status if seen is not None else ""
    return {
        "status": status,
        "good": status in _GOOD,
        "model": clip(one_line(facts.header.get("MODEL_NAME", "")), 80) if facts else "",
        "nodes": nodes,
        "gpus": verdict.job.gpus if verdict is not None else seen.goodput.gpus if seen is not None else None,
        "start": verdict.window.start if verdict is not None else None,
        "end": verdict.window.end if verdict is not None else None,
    }
