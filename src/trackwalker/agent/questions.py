"""From a question to what is asked (the intent) and about which jobs; no model, the same words give the same answer.

`intents.yml` has the words that mean something, `phrasings.yml` the documented phrasings: the help text, the page
docs/agents.md and the tests read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml

from trackwalker.agent.jobwords import Mentions, mentions
from trackwalker.agent.spelling import corrected
from trackwalker.errors import JobNotFoundError, UsageError
from trackwalker.job.layout import Job
from trackwalker.report.text import clip, one_line

Intent = Literal[
    "jobs", "tail", "compare", "heartbeat", "first", "hang", "progress", "culprit", "network", "memory", "loss",
    "storage", "perf", "slow", "evidence", "next", "status", "triage", "why",
]  # fmt: skip


def _data(name: str) -> list[dict[str, Any]]:
    text = resources.files("trackwalker.agent").joinpath(name).read_text(encoding="utf-8")
    found: list[dict[str, Any]] = yaml.safe_load(text)
    return found


def _pattern(words: list[str]) -> str:
    """The words of an intent as one expression: `*` is any end of a word, `…` any words between."""
    each = (word.replace("*", r"\w*").replace(" … ", r"\b.*\b") for word in words)
    return "|".join(rf"\b(?:{word})\b" for word in each)


_INTENTS: list[tuple[Intent, re.Pattern[str]]] = [
    (entry["intent"], re.compile(_pattern(entry["words"]))) for entry in _data("intents.yml")
]
_MEANT = re.compile("|".join(pattern.pattern for _, pattern in _INTENTS))
_COMPLAINT = re.compile(r"\b(?:why|bad|wrong|slow\w*|drop\w*|degrad\w+|poor|terrible|low)\b")
_SLOWED = re.compile(r"\b(?:slow\w*|drop\w*|degrad\w+)\b")
_SWAPPED = re.compile(r"\b(?:faster|better|quicker)\b.*\bthan\b")  # the first of the two is the good one
_RELATIVE = re.compile(r"\b(?:slower|worse|faster|better|quicker|different|differs?|regress\w*)\b")
_SECOND_FIRST = re.compile(
    r"\b(?:slower|worse|different|differs?)\b.*\b(?:than|from|to)\b|\bregress\w*.*\b(?:since|from|against)\b"
    r"|\bcompared (?:to|with|against)\b|\bslow\b.*\bbut\b.*\bfast\b"
)
_SPELLED = """
    triage compare compared comparison heartbeat heartbeats declared accused coordinator innocent defence defend first
    failed failing failure crash crashed hanging hang hung stuck frozen stalled stall deadlock progress checkpoint jobs
    which node nodes host hosts machine blame culprit guilty exclude straggler network fabric congestion retransmits
    packets memory leak leaking loss diverged diverging gradient storage disk filesystem saving perf performance profile
    profiling breakdown kernels bottleneck goodput slow slower slowly faster throughput speed tokens dropped degraded
    degradation evidence proof confident restart resubmit resume status running finished completed happened summary
    diagnose diagnosis cause causes reason died killed stopped cancelled broken problem investigate explain analysis
    why oom nan job tgs mfu rdma nic log tail lines between difference different than the what how far wrong
    """.split()  # noqa: SIM905


@dataclass(frozen=True)
class Asked:
    """What is asked: the intent, the jobs in the order the command wants them, and what was guessed."""

    question: str
    intent: Intent
    jobs: tuple[str, ...]
    guesses: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that gives the same facts."""
        return " ".join(("trackwalker", _COMMANDS.get(self.intent, "diagnose"), *self.jobs))


_COMMANDS: dict[str, str] = {
    "jobs": "jobs", "tail": "logs", "compare": "compare", "first": "triage", "progress": "triage", "perf": "perf",
    "status": "status", "triage": "triage",
}  # fmt: skip


def understand(question: str, jobs: Sequence[Job], running: Callable[[], list[str]]) -> Asked:
    """What a question asks; raises one error that says what can be asked when it is not understood."""
    question = clip(one_line(question), 500)
    if not re.search(r"\w", question):
        raise UsageError(f"nothing was asked; {examples()}")
    named = mentions(question, jobs, running, frozenset(_SPELLED))
    words = corrected(named.rest, _SPELLED, _MEANT.search)
    intent = _intent(words, named)
    if intent is None:
        raise UsageError(f"not understood: \u201c{clip(question, 80)}\u201d; {examples()}")
    if intent == "jobs" and not named.ids:
        return Asked(question, intent, ())
    if intent == "jobs":
        intent = "triage"
    guesses = [f"job {m.job} is meant: {m.told}" for m in named.found if m.told]
    if intent == "compare":
        return Asked(question, intent, _pair(words, named, jobs, guesses), tuple(dict.fromkeys(guesses)))
    return Asked(question, intent, (_one(named, jobs, guesses),), tuple(dict.fromkeys(guesses)))


def _intent(words: str, named: Mentions) -> Intent | None:
    if len(named.ids) == 2 and re.search(r"\bwhy\b|\b(?:and|with|to|against)\b", words):
        return "compare"
    for intent, pattern in _INTENTS:
        if pattern.search(words):
            if intent == "perf" and _COMPLAINT.search(words):
                return "slow"
            if intent == "progress" and _SLOWED.search(words):
                continue  # "at which step did it slow down" asks about the speed
            return intent
    return "why" if named.ids and not re.search(r"[a-z]", words.replace("job", "")) else None


def _one(named: Mentions, jobs: Sequence[Job], guesses: list[str]) -> str:
    if len(named.ids) > 1:
        raise UsageError(f"one question, one job: ask about {named.ids[0]} and {named.ids[1]} apart, or compare them")
    if named.ids:
        return named.ids[0]
    if not jobs:
        raise JobNotFoundError("there is no job in this workspace: give --workspace, or set JOB_WORKSPACE")
    if len(jobs) > 1:
        guesses.append(f"no job was named, so job {jobs[0].id} is meant: the newest")
    return jobs[0].id


def _pair(words: str, named: Mentions, jobs: Sequence[Job], guesses: list[str]) -> tuple[str, str]:
    """Baseline first, then the job in question."""
    ids = named.ids
    if len(ids) > 2:
        raise UsageError(f"two jobs are compared at a time: {ids[0]} with which one?")
    if len(ids) == 2:
        first, second = ids
        return (second, first) if _SECOND_FIRST.search(words) and not _SWAPPED.search(words) else (first, second)
    this = ids[0] if ids else jobs[0].id if jobs else ""
    at = next((n for n, job in enumerate(jobs) if job.id == this), len(jobs))
    older = [job for job in jobs[at + 1 :] if job.name == jobs[at].name] if at < len(jobs) else []
    if not older or not _RELATIVE.search(words):
        raise UsageError(
            f"compare {f'job {this}' if this else 'it'} with which job? ask 'why is B slower than A' with two ids"
        )
    guesses.append(f"job {older[0].id} is meant to compare with: the one before it with the same name")
    return older[0].id, this


@cache
def phrasings() -> list[dict[str, Any]]:
    """The documented phrasings: what is asked, its intent and jobs, and what the answer says in the lab's cases."""
    return _data("phrasings.yml")


def examples() -> str:
    """What can be asked, one phrasing of each kind."""
    first: dict[str, str] = {}
    for each in phrasings():
        first.setdefault(each["intent"], each["ask"].rstrip("?"))
    return "ask, for example: " + "; ".join(first.values())
