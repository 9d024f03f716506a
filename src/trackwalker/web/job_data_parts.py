"""The parts of a job page below the fold: what the incident cost, events, the run's record, settings against another run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.config_diff import Change, config_changes
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Verdict
from trackwalker.errors import EvidenceError, NotAJobError
from trackwalker.job import journal
from trackwalker.job.layout import Job
from trackwalker.job.run import load_run
from trackwalker.job.scrub import Scrubber
from trackwalker.logs.reader import read_log
from trackwalker.perf.spending import goodput_part
from trackwalker.report.text import clip, json_visible, one_line

LOSSES = ("slowdown", "lost work", "stalled")
_MOST_EVENTS, _MOST_CHANGES = 500, 300
_LARGEST_RECORD = 4 << 20
_LARGEST_JOURNAL = 64 << 20


def cost_view(seen: Triage, verdict: Verdict | None, price: float | None) -> dict[str, Any]:
    """Where the time went, and what of it the incident took; unknown is unknown, never zero."""
    budget = seen.goodput
    if budget.gpus is None and verdict is not None and verdict.job.gpus:
        budget = replace(budget, gpus=verdict.job.gpus, gpus_from="the recorded GPUs")
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
    }


def events_view(job: Job) -> dict[str, Any]:
    """The journal of the run, the newest last, as plain rows."""
    path = job.events
    if path is None or not path.is_file():
        return {"rows": [], "left_out": 0, "damaged": 0, "why": "this run wrote no events.jsonl: another launcher's"}
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
        return {"text": "", "facts": [], "why": "there is no run.json: the run was started by another launcher"}
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
    facts = [(name, clip(one_line(str(clean[name])), 200)) for name in wanted if isinstance(clean, dict) and clean.get(name)]
    return {"text": text, "facts": facts, "why": ""}


def changes_between(reference: Job, job: Job, scrubber: Scrubber) -> tuple[list[Change], int]:
    """What the job was told differently from a reference run, what explains most first; and how many more there are."""
    found = config_changes(_bare_case(reference), _bare_case(job))
    clean = [
        replace(c, a=None if c.a is None else scrubber.clean(c.a), b=None if c.b is None else scrubber.clean(c.b))
        for c in found
    ]
    return clean[:_MOST_CHANGES], max(0, len(clean) - _MOST_CHANGES)


def reference_for(job: Job, jobs: list[Job]) -> Job | None:
    """The run to compare settings with: the nearest older one of the same name, else the nearest newer one."""
    same = [other for other in jobs if other.name == job.name and other.log is not None]
    at = next((i for i, other in enumerate(same) if other.id == job.id), None)
    if at is None:
        return same[0] if same else None
    rest = same[at + 1 :] or same[:at][::-1]
    return rest[0] if rest else None


def _bare_case(job: Job) -> Case:
    """A case without its metrics: settings stand in the log and in run.json."""
    if job.log is None:
        raise NotAJobError(f"job {job.id} has no log, so its settings are not known")
    log = read_log(job.log)
    try:
        run = load_run(job.run_json)
    except EvidenceError:
        run = None
    hosts = [place.host for place in run.ranks] if run else log.hosts
    return Case(job, log, run, [], None, None, hosts, None, None, live=False)
