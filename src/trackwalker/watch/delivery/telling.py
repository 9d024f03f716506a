"""From an incident to what a person reads: the same facts, in the order in which they matter at 3 a.m."""

from __future__ import annotations

from typing import Any

from trackwalker.launch.job_state import Standing
from trackwalker.watch.incident import Condition, Incident
from trackwalker.watch.notify.message import Message, Severity

_END_SEVERITY: dict[str, Severity] = {
    "completed": "info",
    "cancelled": "info",
    "revoked": "info",
    "timeout": "warning",
    "preempted": "warning",
    "forgotten": "warning",
    "gone": "warning",
}
FINE_ENDS = frozenset({"completed", "cancelled", "revoked"})


def opened(incident: Incident, name: str, now: float) -> Message:
    """The first message of an incident, with the verdict where there is one already."""
    return _told(incident, "opened", f"{_job(incident, name)}: {incident.title}", now)


def updated(incident: Incident, name: str, now: float) -> Message:
    """More is known than was told: the news comes first, what was told is not said again."""
    step = f"update-{incident.verdicts}{'-evidence' if incident.evidence == 'collected' else ''}"
    return _told(incident, step, f"{_job(incident, name)}: {_headline(incident)}", now)


def resolved(incident: Incident, name: str, why: str, now: float) -> Message:
    """It is over."""
    lasted = f"{max(0.0, now - incident.since):.0f} s"
    return Message(
        key=f"{incident.id}:resolved",
        thread=incident.thread,
        severity="info",
        kind=incident.kind,
        title=f"{_job(incident, name)}: {why}",
        facts={"lasted": lasted},
        resolves=True,
        time=now,
        job=incident.job,
    )


def ending(seen: Standing, since: float, attempt: int) -> Condition:
    """The end of a job, in the scheduler's words."""
    reason = seen.reason if seen.reason and seen.reason not in seen.meaning else ""
    told = {"state": seen.state, "exit code": "" if seen.exit is None else str(seen.exit), "reason": reason}
    told |= {"nodes": seen.nodes, "restarts": str(seen.restarts or "")}
    facts = {name: value for name, value in told.items() if value}
    severity = _END_SEVERITY.get(seen.state, "critical")
    return Condition("ended", f"it {seen.meaning}", since, "", str(attempt), severity, facts, once=True)


def waiting(seen: Standing, since: float) -> Condition:
    """A job that needs a person before it can go on."""
    return Condition("held", f"it {seen.meaning}", since, facts={"reason": seen.reason or seen.state})


def requeued(seen: Standing, since: float) -> Condition:
    """A job that its scheduler queued again."""
    title = f"its scheduler has queued it again (restart {seen.restarts}); it {seen.meaning}"
    return Condition("requeued", title, since, subject=str(seen.restarts), once=True, facts={"state": seen.state})


def _told(incident: Incident, step: str, title: str, now: float) -> Message:
    return Message(
        key=f"{incident.id}:{step}",
        thread=incident.thread,
        severity=incident.severity,
        kind=incident.kind,
        title=title,
        text=_paragraphs(incident),
        facts=_facts(incident),
        time=now,
        job=incident.job,
    )


def _job(incident: Incident, name: str) -> str:
    return f"job {incident.job} ({name})" if name else f"job {incident.job}"


def _headline(incident: Incident) -> str:
    verdict = incident.verdict
    if verdict and verdict["roots"]:
        return f"{incident.kind}: the verdict is {_root(verdict['roots'][0])}"
    return f"{incident.kind}: {'stacks were collected' if incident.evidence == 'collected' else 'more is known'}"


def _root(root: dict[str, Any]) -> str:
    return f"{root['cause']} on {', '.join(root['hosts'][:4])}" if root["hosts"] else str(root["cause"])


def _facts(incident: Incident) -> dict[str, str]:
    facts = dict(incident.facts)
    if incident.ranks:
        facts["ranks"] = ", ".join(str(rank) for rank in incident.ranks[:16])
    verdict = incident.verdict
    if verdict:
        facts["verdict"] = ", ".join(_root(r) for r in verdict["roots"]) or verdict["outcome"]
    return facts


def _paragraphs(incident: Incident) -> str:
    parts = [incident.text]
    verdict = incident.verdict
    if verdict:
        parts.append(f"Verdict: {verdict['summary']}")
        parts += [f"To do: {action}" for action in verdict["actions"][:1]]
    if incident.seen:
        parts.append(f"Stacks: {incident.seen}")
    if incident.evidence == "collected":
        parts.append(f"Evidence: stacks/{incident.id} in the job directory")
    return "\n".join(part for part in parts if part)
