"""A playbook: YAML front matter that the engine executes, prose that people and agents read."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from trackwalker.diagnose.causes.states import states
from trackwalker.errors import UsageError
from trackwalker.job.causes import About, apart, front_matter, parsed
from trackwalker.job.yaml_files import shipped

# The first six are trouble; the others look like it, or show only in metrics, and may turn out to be normal.
Symptom = Literal[
    "stall",
    "slow",
    "failed",
    "heartbeat",
    "cancelled",
    "loss",
    "blip",
    "uneven",
    "saves",
    "unfinished-start",
    "short",
    "none",
]
Window = Literal["during", "before", "slow", "fast", "kill", "missed", "steady", "calm", "start", "end", "whole"]


@cache
def limits() -> dict[str, dict[str, Any]]:
    """Limits that several tests share, by name, each with its reason (`why`)."""
    told = shipped("playbooks", "limits.yml")
    return {str(name): dict(limit) for name, limit in told.items()}


class Test(BaseModel):
    """One question: a metric query with a detector, a fact of log and journals, or a failure class of the log."""

    model_config = ConfigDict(extra="forbid")

    id: str
    role: Literal["require", "support", "refute", "locate"]
    group: str | None = None  # of the required tests in a group, one must fire
    accuses: bool = False  # the hosts it names are culprits
    definite: bool = False  # measured, it says as much as a line of the log that names the cause
    narrows: bool = False  # of the culprits only those that it names too
    when: str | None = None  # asked only if this test fired
    unless: str = ""  # not asked if one of these tests fired
    fact: str | None = None
    signature: list[str] | None = None  # causes that log lines name
    primary: bool = False  # only where triage calls that class the primary one
    hint: bool = False  # that no such line is there says nothing
    warnings: bool = False  # lines that by themselves mean little count too
    query: str | None = None
    spread: bool = False  # its quantiles tell how far a value moves: asked of windows that hold some looks at it
    label: Literal["host", "device", "gpu"] = "host"
    window: Window = "whole"
    against: Literal["before", "fast"] | None = None
    detector: str | None = None
    with_: dict[str, Any] = {}
    says: str = ""
    clean: str = ""  # what to say when it did not fire and that rules the cause out
    metrics: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _with(cls, data: Any) -> Any:
        if isinstance(data, dict) and "with" in data:
            told = data["with"]
            if isinstance(told, str):
                if told not in limits():
                    raise ValueError(f"no limit '{told}' in limits.yml; known: {', '.join(sorted(limits()))}")
                told = limits()[told]
            data = {**data, "with_": {k: v for k, v in told.items() if k != "why"}}
            del data["with"]
        return data

    @model_validator(mode="after")
    def _one_kind(self) -> Test:
        if sum(kind is not None for kind in (self.fact, self.signature, self.query)) != 1:
            raise ValueError(f"test '{self.id}' needs a fact, a signature or a query, and only one of them")
        if self.query is not None and (self.detector is None or not self.metrics or not self.says):
            raise ValueError(f"test '{self.id}' needs detector, metrics and says beside its query")
        return self


class PlaybookAction(BaseModel):
    """What to do when the playbook's cause is found."""

    model_config = ConfigDict(extra="forbid")

    do: str
    why: str
    risk: str
    needs_approval: bool
    when_hosts: bool | None = None  # only with (true) or without (false) named hosts


class Playbook(BaseModel):
    """One cause: which symptoms call it, what it needs, how it is tested, what follows."""

    model_config = ConfigDict(extra="forbid")

    id: str
    title: str
    symptoms: list[Symptom]
    outcome: Literal["incident", "expected", "healthy"] = "incident"
    acts_on: Literal["gpu", ""] = ""  # what is at fault where only one rank is there to be named
    mechanism: bool = False  # it delivers the blow: a root only when nothing else was wrong
    state: str = ""  # what the cause is, in states.yml: what comes of it, and of what it can come, is told there
    acts_as: str = ""  # the state whose arrows it has, where that is another
    only_if_told: bool = False  # something comes of it only where the log names it before all else
    stands_out: list[str] = []  # quantities: who stands out in these, and in nothing that anybody else knows, has it
    overrides: bool = False  # nothing else that was found counts beside it
    tests: list[Test]
    screen: list[Test] = []  # asked of a run that has no slow phase: is it bad from beginning to end?
    summary: str
    summary_alone: str = ""  # the same of a job with one rank, where nobody waits for anybody
    actions: list[PlaybookAction] = []
    lanes: dict[str, str] = {}  # metric to draw per host: query and title
    about: About | None = None  # what follows from it: required in a file
    body: str = ""

    @model_validator(mode="after")
    def _known_state(self) -> Playbook:
        unknown = {self.state, self.acts_as} - {""} - states().known
        if unknown:
            raise ValueError(f"no state '{min(unknown)}' in states.yml; known: {', '.join(sorted(states().known))}")
        return self


def load_playbooks(own: Path | None = None) -> list[Playbook]:
    """The shipped playbooks in the order of their ids; those of a folder of one's own are added or replace them."""
    books = {book.id: book for book in _shipped()}
    if own is not None:
        if not own.is_dir():
            raise UsageError(f"no folder of playbooks at {own}; it holds one .md file for each")
        books |= {book.id: book for path in sorted(own.glob("*.md")) for book in [load_playbook(path)]}
    return [books[name] for name in sorted(books)]


@cache
def _shipped() -> tuple[Playbook, ...]:
    """Read once: that takes as long as half of what a diagnosis of a small job asks of them."""
    return tuple(load_playbook(path) for path in Path(str(files("trackwalker.playbooks"))).glob("*.md"))


@cache
def state_of(cause: str) -> str:
    """The state that a shipped cause is ("": its file names none); without tests, what log lines make of it."""
    path = Path(str(files("trackwalker.playbooks"))) / f"{cause}.md"
    return load_playbook(path).state if path.exists() else states().of_log(cause)


def tells_apart(cause: str) -> bool:
    """Whether a shipped cause has tests that name hosts."""
    return any(test.accuses for book in _shipped() if book.id == cause for test in book.tests)


def load_playbook(path: Path) -> Playbook:
    """Read one playbook; a mistake in it is one line that says where."""
    front, body = front_matter(path)

    def make(said: dict[str, Any]) -> Playbook:
        about, rest = apart(said)
        return Playbook(**rest, about=about, body=body)

    return parsed(path.name, front, make)


def least_metrics(there: frozenset[str]) -> dict[str, set[str]]:
    """For each cause the metrics of the test that lacks the fewest: it is testable when one test has all it needs."""
    return {
        book.id: min(needs, key=lambda need: len(need - there))
        for book in load_playbooks()
        if (needs := [set(test.metrics) for test in book.tests if test.metrics])
    }
