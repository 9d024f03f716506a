"""A question answered from the engine's results, in a few plain sentences with evidence and a next step; no model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from trackwalker.agent.ask.answer_parts import Quote, Reply
from trackwalker.agent.ask.log_answers import (
    first_failure,
    how_far,
    jobs_here,
    log_end,
    performance,
    standing_of,
    triaged,
)
from trackwalker.agent.ask.questions import Asked, Intent
from trackwalker.agent.workspace import Workspace
from trackwalker.diagnose.verdict import Action, Cause, Verdict
from trackwalker.diagnose.views.asked import TOPICS
from trackwalker.job.causes import Topic, about_topic, cause_label, cause_name
from trackwalker.report import words
from trackwalker.report.text import clip, one_line
from trackwalker.report.words import lacking

_MOST_EVIDENCE = 3
_MOST_ACTIONS = 3
_YES_NO = re.compile(r"^\W*(?:is|was|were|are|did|does|do|has|have|had|could|can|might|should)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Subject:
    """What a question can be about: the topic whose causes mean yes, and the words for none."""

    topic: Topic
    nothing: str

    def among(self, causes: Iterable[str]) -> set[str]:
        """The causes that mean yes."""
        return about_topic(set(causes), self.topic)


_SUBJECTS: dict[Intent, Subject] = {
    "slow": Subject("speed", TOPICS["speed"][1]),
    "hang": Subject("hang", TOPICS["stop"][1]),
    "network": Subject("network", TOPICS["network"][1]),
    "memory": Subject("memory", TOPICS["memory"][1]),
    "loss": Subject("loss", TOPICS["loss"][1]),
    "storage": Subject("storage", "no trouble with storage or checkpoints was found"),
    "heartbeat": Subject("heartbeat", "the heartbeat is not what ended this run"),
}


def answer(asked: Asked, ws: Workspace) -> Reply:
    """The answer; whatever is quoted from the job has lost its secrets."""
    simple: dict[str, Callable[[Asked, Workspace], Reply]] = {
        "jobs": jobs_here, "tail": log_end, "status": standing_of, "progress": how_far, "first": first_failure,
        "triage": triaged, "perf": performance,
    }  # fmt: skip
    if asked.intent in simple:
        return simple[asked.intent](asked, ws).clean(ws)
    if asked.intent == "compare":
        return _comparison(asked, ws).clean(ws)
    diagnosis = ws.verdict(ws.job(asked.jobs[0]))
    verdict = diagnosis.verdict
    return _reply(asked, verdict, _lead(asked, verdict), diagnosis.damage).clean(ws)


def _reply(asked: Asked, verdict: Verdict, lead: list[str], damage: list[str]) -> Reply:
    head = verdict.roots[:1] or verdict.causes[:1]
    return Reply(
        asked=asked,
        sentences=[*lead, *(_sure(cause) for cause in verdict.roots[:3])],
        evidence=_evidence(asked, verdict, head),
        next=[_do(action) for action in verdict.actions[:_MOST_ACTIONS]] or _otherwise(verdict),
        verdict=verdict,
        facts=[verdict.to_json()],
        damage=list(damage),
    )


def _comparison(asked: Asked, ws: Workspace) -> Reply:
    baseline, job = (ws.job(name) for name in asked.jobs)
    found = ws.comparison(baseline, job)
    lead = [f"Job {job.id} compared with job {baseline.id}: {found.verdict.summary}"]
    if found.changes:
        lead.append(f"Settings that differ: {'; '.join(clip(one_line(c.says), 160) for c in found.changes[:4])}.")
    reply = _reply(asked, found.verdict, lead, found.damage)
    reply = replace(reply, facts=[*reply.facts, *(c.says for c in found.changes)])
    if found.verdict.roots:
        return reply
    # A comparison looks at the steps that both ran. What happened to the job after them is its own story.
    alone = ws.verdict(job).verdict
    if not alone.roots:
        return reply
    own = _reply(asked, alone, [f"Looked at alone, job {job.id} has a cause of its own: {alone.summary}"], [])
    return replace(
        reply,
        sentences=reply.sentences + own.sentences,
        evidence=[*reply.evidence[:2], *(replace(q, id=f"{job.id}/{q.id}") for q in own.evidence)],
        next=own.next,
        facts=reply.facts + own.facts,
    )


def _lead(asked: Asked, verdict: Verdict) -> list[str]:
    """The first words answer what was asked; the verdict follows."""
    if asked.intent in ("culprit", "why", "triage") and (told := _about_hosts(asked, verdict)):
        return [*told, verdict.summary]
    if asked.intent == "culprit":
        return _blame(verdict)
    if asked.intent == "evidence":
        return [verdict.summary, f"It rests on {len(verdict.evidence)} pieces of evidence."]
    subject = _SUBJECTS.get(asked.intent)
    if subject is None:
        return [verdict.summary]
    roots = {c.cause for c in verdict.roots}
    beside = {c.cause for c in verdict.causes} - roots
    yes_no = bool(_YES_NO.match(asked.question))
    if subject.among(roots):
        return [f"{_yes(asked) if yes_no else ''}{verdict.summary}"]
    if partly := subject.among(beside):
        part = min(partly)
        return [f"In part: {cause_label(part)} is there, but it is not the root. {verdict.summary}"]
    return [*_not_it(asked.intent, subject, verdict, yes_no), _instead(verdict)]


def _yes(asked: Asked) -> str:
    """The first word where the cause is the one that was asked about; a false alarm means that nobody was dead."""
    if asked.intent != "heartbeat":
        return "Yes: "
    if re.search(r"\b(?:dead|die[ds]?|crash\w*|fail\w*)\b", asked.question, re.IGNORECASE):
        return "No: "
    return "Yes: " if re.search(r"\b(?:false|innocent|alive)\b", asked.question, re.IGNORECASE) else ""


def _not_it(intent: Intent, subject: Subject, verdict: Verdict, yes_no: bool) -> list[str]:
    """No, and how well that is known: what was not measured is never ruled out."""
    clean = sorted(subject.among(r.cause for r in verdict.ruled_out if r.evidence))
    unknown = {u.cause: u.missing for u in verdict.untestable}
    blind = {cause: unknown[cause] for cause in subject.among(unknown)}
    if yes_no and blind and not clean:
        missing = sorted({m for needs in blind.values() for m in needs})
        what, needed = _named(sorted(blind), 4), words.names(lacking(missing), 4)
        return [f"That is not known: {what} needs {needed}, which was not collected."]
    known = bool(clean) or (intent == "hang" and verdict.status == "completed")
    begin = "" if not yes_no else "No: " if known else "Nothing points to it: "
    said = [f"{begin}{subject.nothing}."]
    said[0] = said[0][0].upper() + said[0][1:]
    if clean:
        said.append(f"It was looked for and ruled out by measurements: {_named(clean, 5)}.")
    if blind:
        said.append(f"Not testable with what was collected: {_named(sorted(blind), 4)}.")
    return said


def _named(causes: list[str], most: int) -> str:
    return words.names([cause_label(cause) for cause in causes], most)


def _instead(verdict: Verdict) -> str:
    return f"What was found instead: {verdict.summary}" if verdict.outcome == "incident" else verdict.summary


def _blame(verdict: Verdict) -> list[str]:
    accused = [c for c in verdict.roots if c.hosts or c.gpus or c.devices]
    if not accused:
        begin = "No single node is to blame" if verdict.outcome == "incident" else "No node is suspect"
        return [f"{begin}.", verdict.summary]
    told = [
        f"{words.names(c.hosts or c.gpus or c.devices)}: {cause_name(c.cause)}"
        + (f" ({words.names([*c.gpus, *c.devices], 4)})" if c.hosts and (c.gpus or c.devices) else "")
        for c in accused
    ]
    return [f"{'; '.join(told)}.", verdict.summary]


def _about_hosts(asked: Asked, verdict: Verdict) -> list[str]:
    """Whether the hosts that the question names are accused."""
    named = set(re.findall(r"[\w.-]*\w", asked.question.lower()))
    accused = {host: cause for cause in verdict.roots for host in cause.hosts}
    measured = {name for e in verdict.evidence for name in e.values}
    told = []
    for host in sorted({*accused, *measured}):
        if host.lower() in named and host in accused:
            told.append(f"{host} is suspect: {cause_name(accused[host].cause)}.")
        elif host.lower() in named:
            told.append(f"{host} is not suspect.")
    return told


def _sure(cause: Cause) -> str:
    facts = [words.confidence(cause.confidence)]
    if cause.onset is not None:
        facts.append(f"since {words.onset(cause.onset)}")
    if cause.magnitude is not None:
        facts.append(words.magnitude(cause.magnitude))
    return f"{cause_label(cause.cause)}: {', '.join(facts)}."


def _evidence(asked: Asked, verdict: Verdict, causes: list[Cause]) -> list[Quote]:
    """The pieces that matter most; metrics first, as a log only says what its writer believed."""
    known = {e.id: e for e in verdict.evidence}
    cited = [known[e] for c in causes for e in c.evidence if e in known]
    if not cited:
        subject = _SUBJECTS.get(asked.intent)
        out = subject.among(r.cause for r in verdict.ruled_out) if subject else set()
        clean = [e for r in verdict.ruled_out if r.cause in out for e in r.evidence if e in known]
        speed = [e for e in verdict.evidence if e.kind == "progress"]  # where nothing was tested: that it went on
        cited = [known[e] for e in clean] or speed or verdict.evidence
    most = 12 if asked.intent == "evidence" else _MOST_EVIDENCE
    ranked = sorted(dict.fromkeys(e.id for e in cited), key=lambda e: known[e].kind not in ("metric", "progress"))
    return [Quote.of(known[e]) for e in ranked[:most]]


def _do(action: Action) -> str:
    asks = " [needs approval]" if action.needs_approval else ""
    why = "" if action.do == "next-step" else f": {one_line(action.why)}"  # a log's own advice is its title
    return f"{words.action_title(action)}{asks}{why}"


def _otherwise(verdict: Verdict) -> list[str]:
    if verdict.outcome == "insufficient-evidence":
        missing = sorted({m for u in verdict.untestable for m in u.missing})
        return [f"collect {words.names(lacking(missing), 6)} and ask again"] if missing else []
    return ["nothing has to be done"] if verdict.outcome in ("healthy", "expected") else []
