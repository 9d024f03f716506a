"""From a question to what is asked (the intent) and about which jobs; no model, the same words give the same answer.

`intents.yml` has the words that mean something, `phrasings.yml` the documented phrasings: the help text, the page
docs/how-to/ask.md and the tests read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from trackwalker.agent.ask.spelling import corrected, distance
from trackwalker.errors import JobNotFoundError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.yaml_files import shipped
from trackwalker.report.text import clip, one_line

Intent = Literal[
    "jobs", "tail", "compare", "heartbeat", "first", "hang", "progress", "culprit", "network", "memory", "loss",
    "storage", "perf", "slow", "evidence", "next", "status", "triage", "why",
]  # fmt: skip


# Which jobs a sentence speaks of: ids anywhere in it, names, 'the last job', 'the running one', 'job B and job A'.
_TOKEN = re.compile(r"[A-Za-z0-9][\w.+-]*[\w+]|\d")
_NUMBER = re.compile(r"\d+$")
_TYPING_ERRORS = 2
_SHORTEST_NUMBER = 3  # a job's number; "2 nodes" is none
# "step 97", "exit code 143", "900 s", "20 %": numbers that count something, even where a job has that number.
_COUNTS_BEFORE = re.compile(
    r"\b(?:steps?|ranks?|tasks?|nodes?|hosts?|gpus?|code|exit|signal|port|lines?)\s+$", re.IGNORECASE
)
_COUNTS_BEHIND = re.compile(
    r"\s*(?:%|(?:steps|lines|seconds|minutes|hours|days|watts|percent|times|s|ms|gb|tb|mb)\b)", re.I
)
# The same for a number that is no job's: then it may well count something.
_MAY_COUNT_BEFORE = re.compile(
    r"\b(?:last|first|at|after|about|only|top|by|to|from|of|below|above|around)\s+$", re.IGNORECASE
)
_MAY_COUNT_BEHIND = re.compile(r"\s*(?:step|rank|nodes?|hosts?|gpus?|h|min|w|tgs|tokens?|tflops?)\b", re.IGNORECASE)
_LETTERS = re.compile(r"\b(?:job|run)s?\s+([ab])\b|\b([AB])\b")
_RUNNING = re.compile(
    r"\b(?:the )?(?:one|job|run) (?:that is |that's |which is )?running\b|\b(?:the|my) running (?:one|job|run)\b", re.I
)
_BEFORE = re.compile(
    r"\b(?:the )?(?:(?:one|job|run) before|previous(?: one| job| run)?|earlier (?:one|job|run))\b", re.I
)
_NEWEST = re.compile(r"\b(?:the |my )?(?:last|latest|newest|recent|current) (?:one|job|run)\b", re.I)
_DULL_NAMES = frozenset({"jax", "log", "run", "job", "the", "test", "model", "train", "training", "outputs"})
_PLACE = "JOB"


@dataclass(frozen=True)
class Mention:
    """A job that a sentence names, and where it does."""

    job: str
    begin: int
    end: int
    told: str = ""  # how the job was chosen, where that was a guess


@dataclass(frozen=True)
class Mentions:
    """All of them in order; `rest` is the sentence with each replaced by one word."""

    found: tuple[Mention, ...]
    rest: str

    @property
    def ids(self) -> list[str]:
        """Each job once, in the order of the sentence."""
        return list(dict.fromkeys(m.job for m in self.found))


def mentions(
    question: str, jobs: Sequence[Job], running: Callable[[], list[str]], plain: Collection[str] = ()
) -> Mentions:
    """The jobs that are named; words in `plain` name none, whatever a job is called.

    `running` is only called when somebody asks for the running one: a scheduler may have to be asked.
    """
    found: list[Mention] = []

    def add(job: str, begin: int, end: int, told: str = "") -> None:
        if not any(m.begin < end and begin < m.end for m in found):
            found.append(Mention(job, begin, end, told))

    for match in _TOKEN.finditer(question):
        named = _by_token(question, match, jobs, plain)
        if named is not None:
            add(named[0], match.start(), match.end(), named[1])
    for match in _RUNNING.finditer(question):
        add(_the_running(running()), match.start(), match.end())
    for match in _BEFORE.finditer(question):
        add(_nth(jobs, 1), match.start(), match.end(), "the one before the newest")
    for match in _NEWEST.finditer(question):
        add(_nth(jobs, 0), match.start(), match.end(), "the newest")
    if not found:
        for match in _LETTERS.finditer(question):
            letter = (match[1] or match[2]).upper()
            if match[1] or len(_LETTERS.findall(question)) > 1:  # a lone capital A may begin a sentence
                job, told = _letter(letter, jobs)
                add(job, match.start(), match.end(), told)
    found.sort(key=lambda m: m.begin)
    rest = question
    for mention in reversed(found):
        rest = f"{rest[: mention.begin]}{_PLACE}{rest[mention.end :]}"
    return Mentions(tuple(found), rest)


def _by_token(
    question: str, match: re.Match[str], jobs: Sequence[Job], plain: Collection[str]
) -> tuple[str, str] | None:
    """A job by its whole id or name, by the beginning of an id, or by a word of its name."""
    word = match[0]
    if _NUMBER.match(word) and _counts(question, match):
        return None
    for job in jobs:
        if word in (job.id, job.label):
            return job.id, ""
    if _NUMBER.match(word):
        if len(word) < _SHORTEST_NUMBER or (_may_count(question, match) and not _begins(word, jobs)):
            return None
        return _by_beginning(word, jobs), ""
    lower = word.lower()
    if lower.startswith(("local_", "k8s-")):
        return _by_beginning(word, jobs), ""
    if len(lower) < _SHORTEST_NUMBER or lower in _DULL_NAMES or lower in plain:
        return None
    named = [j for j in jobs if lower in (j.name.lower(), *re.split(r"[-_.]", j.name.lower()))]
    named = named or [j for j in jobs if "-" in lower and lower in j.name.lower()]
    if not named:
        return None
    return named[0].id, f"the newest of {len(named)} jobs called {word}" if len(named) > 1 else ""


def _counts(question: str, match: re.Match[str]) -> bool:
    """Whether a number is a quantity, or only a part of one (3,291.2)."""
    before, behind = question[: match.start()], question[match.end() :]
    if re.match(r"[.,:]\d", behind) or re.search(r"\d[.,:]$", before):
        return True
    return bool(_COUNTS_BEFORE.search(before) or _COUNTS_BEHIND.match(behind))


def _may_count(question: str, match: re.Match[str]) -> bool:
    before, behind = question[: match.start()], question[match.end() :]
    return bool(_MAY_COUNT_BEFORE.search(before) or _MAY_COUNT_BEHIND.match(behind))


def _begins(word: str, jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs if job.id.startswith(word)]


def _by_beginning(word: str, jobs: Sequence[Job]) -> str:
    begins = _begins(word, jobs)
    if len(begins) == 1:
        return begins[0]
    if begins:
        raise JobNotFoundError(f"'{word}' could be {len(begins)} jobs: which of {', '.join(begins[:5])}?")
    near = sorted((distance(word, job.id), at, job.id) for at, job in enumerate(jobs))
    hint = (
        f"did you mean {near[0][2]}?"
        if near and near[0][0] <= _TYPING_ERRORS
        else "'trackwalker jobs' lists what is there"
    )
    raise JobNotFoundError(f"no job '{word}' in this workspace; {hint}")


def _nth(jobs: Sequence[Job], at: int) -> str:
    if len(jobs) <= at:
        raise JobNotFoundError("there is no job in this workspace" if not jobs else "there is no job before this one")
    return jobs[at].id


def _the_running(ids: list[str]) -> str:
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise JobNotFoundError("no job of this workspace is known to be running: name one by its id")
    raise JobNotFoundError(f"{len(ids)} jobs are running: which of {', '.join(ids[:5])}?")


def _letter(letter: str, jobs: Sequence[Job]) -> tuple[str, str]:
    """Job A and job B are the older and the newer one where there are two; nobody can say otherwise."""
    if len(jobs) != 2:
        raise JobNotFoundError(f"which one is job {letter}? give its id ('trackwalker jobs' lists them)")
    return jobs[1 if letter == "A" else 0].id, f"job {letter} is the {'older' if letter == 'A' else 'newer'} of the two"


def _data(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shipped("agent", name)
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
