"""The parts of a job page below the fold: what the incident cost, events, the run's record."""

from __future__ import annotations

import json
from typing import Any

from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.verdict import Verdict
from trackwalker.errors import EvidenceError
from trackwalker.job import journal
from trackwalker.job.layout import Job
from trackwalker.job.scrub import Scrubber
from trackwalker.perf.throughput.goodput_cost import goodput_part
from trackwalker.report.story.cost import LOSSES, with_recorded
from trackwalker.report.text import clip, json_visible, one_line

_MOST_EVENTS = 500
_LARGEST_RECORD = 4 << 20
_LARGEST_JOURNAL = 64 << 20


def cost_view(seen: Triage, verdict: Verdict | None, price: float | None) -> dict[str, Any]:
    """Where the time went, and what of it the incident took; unknown is unknown, never zero."""
    budget = seen.goodput
    if verdict is not None:
        budget = with_recorded(budget, verdict)
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
    facts = [
        (name, clip(one_line(str(clean[name])), 200)) for name in wanted if isinstance(clean, dict) and clean.get(name)
    ]
    return {"text": text, "facts": facts, "why": ""}
