"""A verdict as the job page shows it: every claim with the link that gives it back, every advice as a command."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from trackwalker.diagnose.saved import note_of
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Action, Evidence, Verdict
from trackwalker.errors import EvidenceError
from trackwalker.job import journal
from trackwalker.job.causes import cause_label
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord, load_run
from trackwalker.job.scrub import Scrubber
from trackwalker.logs.failures.findings import Finding
from trackwalker.perf.throughput.goodput_cost import goodput_part
from trackwalker.report import view, words
from trackwalker.report.commands import command_of, drain_of, first_look
from trackwalker.report.story.cost import LOSSES
from trackwalker.report.text import clip, json_visible, one_line
from trackwalker.report.view import in_order
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
        if job.database is None:  # its metrics are gone: the source stays, and nobody can ask it
            return []
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
        "note": one_line(note_of(verdict)),
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
    rows = words.verdict_facts(verdict)
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
        "gpus": (verdict.job.gpus if verdict is not None else None)
        or (seen.goodput.gpus if seen is not None else None),
        "start": verdict.window.start if verdict is not None else None,
        "end": verdict.window.end if verdict is not None else None,
    }


_MOST_HOSTS = 64
_LEAVE_OUT = ("exclude-nodes", "drain-node")


@dataclass(frozen=True)
class Advice:
    """One piece of advice: what and why in words, and the command where there is one."""

    head: str
    why: str
    risk: str
    approval: bool
    command: str = ""
    note: str = ""  # what the command does or does not do


def commands(job: Job, verdict: Verdict, seen: Triage | None) -> list[Advice]:
    """The verdict's actions in its order, each with the command that begins it."""
    record = _record(job)
    told, known = [], set[str]()
    for action in verdict.actions[:12]:
        advice = _advice(job, action, verdict, record, seen)
        told.append(replace(advice, command="") if advice.command in known else advice)  # one look serves them all
        known.add(advice.command)
    return told


def next_command(job: Job) -> list[Advice]:
    """Before there is a verdict: how to get it where there is no browser."""
    why = "the same verdict in a terminal, and as a file that opens anywhere"
    return [Advice("diagnose", why, "none", False, f"trackwalker diagnose {shlex.quote(job.id)} --save")]


def _advice(job: Job, action: Action, verdict: Verdict, record: RunRecord | None, seen: Triage | None) -> Advice:
    hosts = [one_line(host) for host in action.hosts[:_MOST_HOSTS]]
    command, note = "", ""
    if action.do in _LEAVE_OUT and hosts:
        command, note = _without(job, hosts, record, seen)
        if drained := drain_of(action, verdict):
            command, note = drained, "takes capacity away"
    elif action.do == "restart-job" and record is not None:
        command, note = f"trackwalker resume {shlex.quote(job.id)}", "says what it would do; --yes starts it"
    elif action.do in ("find-the-first-failure", "read-traceback"):
        command, note = f"trackwalker triage {shlex.quote(job.id)}", "changes nothing"
    if not command:
        command = command_of(action, verdict)
        if command == first_look(verdict, shlex.quote(job.id)):
            note = "the command only looks, and changes nothing"
    return Advice(
        words.action_title(action),
        clip(one_line(action.why), 600),
        clip(one_line(action.risk), 200),
        action.needs_approval,
        command,
        note,
    )


def _without(job: Job, hosts: list[str], record: RunRecord | None, seen: Triage | None) -> tuple[str, str]:
    """The same run on other nodes; a run of another launcher is asked for anew."""
    if record is not None:
        command = f"trackwalker resume {shlex.quote(job.id)} --exclude {_joined(hosts)}"
        return command, "says what it would do; --yes starts it"
    header = seen.index.facts.header if seen is not None else {}
    model, nodes = one_line(header.get("MODEL_NAME", "")) or "MODEL", one_line(header.get("NNODES", "")) or "N"
    command = f"trackwalker submit {shlex.quote(model)} -N {shlex.quote(nodes)} --exclude={_joined(hosts)}"
    return command, "the next run without them; add your own settings behind --"


def _joined(hosts: list[str]) -> str:
    return shlex.quote(",".join(hosts))


def _record(job: Job) -> RunRecord | None:
    try:
        return load_run(job.run_json)
    except EvidenceError:
        return None


_MOST_EVENTS = 500
_LARGEST_RECORD = 4 << 20
_LARGEST_JOURNAL = 64 << 20


def cost_view(seen: Triage, verdict: Verdict | None, price: float | None) -> dict[str, Any]:
    """Where the time went, and what of it the incident took; unknown is unknown, never zero."""
    budget = seen.goodput.with_recorded(verdict.job.gpus if verdict is not None else None)
    part = goodput_part(budget, price)
    lost = [row for row in part.rows if row.what in LOSSES]
    hours = [row.gpu_hours for row in lost if row.gpu_hours is not None]
    money = [row.money for row in lost if row.money is not None]
    return {
        "part": part,
        "lost_h": sum(row.hours for row in lost),
        "lost_gpu_h": sum(hours) if part.gpus is not None else None,
        "lost_money": sum(money) if part.gpus is not None and price is not None else None,
        "losses": LOSSES,
        "lost_known": budget.lost_known or any(row.hours for row in lost),
        "start_up": budget.start_up if budget.hardly_trained else None,
    }


def events_view(job: Job) -> dict[str, Any]:
    """The journal of the run, the newest last, as plain rows."""
    path = job.events
    if path is None or not path.is_file():
        why = "There is no events.jsonl: the run was started by another launcher."
        return {"rows": [], "left_out": 0, "damaged": 0, "why": why}
    if path.stat().st_size > _LARGEST_JOURNAL:
        raise EvidenceError("events.jsonl is too large to show here: read it with trackwalker logs")
    found = journal.read(path)
    rows = sorted((e for e in found.items if isinstance(e.get("t"), int | float)), key=lambda e: float(e["t"]))
    shown = rows[-_MOST_EVENTS:]
    return {"rows": [_event(e) for e in shown], "left_out": len(rows) - len(shown), "damaged": found.damaged, "why": ""}


def _event(event: dict[str, Any]) -> dict[str, Any]:
    data = event.get("data")
    facts = data.items() if isinstance(data, dict) else []
    said = ", ".join(f"{k} {v if isinstance(v, str | int | float) else json.dumps(v, default=str)}" for k, v in facts)
    return {
        "t": float(event["t"]),
        "kind": clip(one_line(str(event.get("kind", ""))), 60),
        "stage": clip(one_line(str(event.get("stage") or "")), 60),
        "host": clip(one_line(str(event.get("host") or "")), 80),
        "rank": event.get("rank") if isinstance(event.get("rank"), int) else None,
        "says": clip(one_line(said), 400),
    }


def run_view(job: Job, scrubber: Scrubber) -> dict[str, Any]:
    """run.json without secrets: the facts that people look for, and the whole document."""
    path = job.run_json
    if path is None or not path.is_file():
        return {"text": "", "facts": [], "why": "There is no run.json: the run was started by another launcher."}
    if path.stat().st_size > _LARGEST_RECORD:
        return {"text": "", "facts": [], "why": "run.json is too large to show"}
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return {"text": "", "facts": [], "why": "run.json is damaged: it is no JSON"}
    scrubber.learn_document(document)
    clean = scrubber.clean_document(document)
    text = json_visible(json.dumps(clean, indent=1, ensure_ascii=False))
    wanted = ("model", "scheduler", "trainer", "image", "image_digest", "snapshot", "created")
    told = {name: clean[name] for name in wanted if isinstance(clean, dict) and clean.get(name)}
    facts = [(name, v if isinstance(v, int | float) else clip(one_line(str(v)), 200)) for name, v in told.items()]
    return {"text": text, "facts": facts, "why": ""}
