"""What a detector sees, and what becomes of it: one incident, one thread, from its opening to its end."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from trackwalker.watch.notify.message import Severity


@dataclass(frozen=True)
class Condition:
    """Something that is wrong with a job now (or, `once`, that happened to it)."""

    kind: str  # hang, slow, data-stall, loss, checkpoint, failure, fault, telemetry, held, requeued, ended
    title: str
    since: float
    text: str = ""
    subject: str = ""  # an alert, an attempt: tells two conditions of one kind apart
    severity: Severity = "warning"
    facts: dict[str, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    once: bool = False  # an event: it is told once and has no end of its own
    silent_s: float = 0.0  # of a suspected hang: for how long no rank has moved
    limit_s: float = 0.0  # and how long that may be


@dataclass
class Incident:
    """A condition that was called, as the watcher remembers it."""

    id: str
    job: str
    kind: str
    title: str
    since: float
    opened: float
    text: str = ""
    subject: str = ""
    severity: Severity = "warning"
    facts: dict[str, str] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    once: bool = False
    thread: str = ""
    updated: float = 0.0
    resolved: float | None = None
    told: bool = False  # its first message was decided on
    evidence: str = ""  # "", requested, collected, none
    seen: str = ""  # what the collected evidence says
    verdict: dict[str, Any] | None = None  # summary, outcome, roots, actions
    verdicts: int = 0  # diagnoses that were asked for

    @property
    def is_open(self) -> bool:
        """Whether it is going on."""
        return self.resolved is None

    @classmethod
    def from_dict(cls, said: dict[str, Any]) -> Incident:
        """From the journal; what a newer watcher added is left out."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in said.items() if name in known})
