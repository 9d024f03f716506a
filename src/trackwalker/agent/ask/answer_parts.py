"""What an answer is made of, whoever gives it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trackwalker.agent.ask.questions import Asked
from trackwalker.agent.workspace import Workspace
from trackwalker.diagnose.verdict import Evidence, Verdict
from trackwalker.report.text import clip, one_line


@dataclass(frozen=True)
class Quote:
    """A piece of evidence with its place; `quoted` when the words are the job's, which are data."""

    id: str
    says: str
    source: str
    quoted: bool = False

    @classmethod
    def of(cls, item: Evidence) -> Quote:
        """A verdict's evidence."""
        own = item.kind in ("metric", "progress")
        return cls(item.id, clip(one_line(item.says), 300), clip(one_line(item.source), 200), not own)


@dataclass(frozen=True)
class Reply:
    """The answer: sentences, the evidence behind them, what to do next; and all that they were made from."""

    asked: Asked
    sentences: list[str]
    evidence: list[Quote] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    verdict: Verdict | None = None
    facts: list[str] = field(default_factory=list)  # JSON or text that every figure of the sentences is in
    damage: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The sentences alone."""
        return " ".join(self.sentences)

    def clean(self, ws: Workspace) -> Reply:
        """The same without secrets and without control characters."""
        scrubber = ws.scrubber(ws.job(self.asked.jobs[-1]) if self.asked.jobs else None)

        def safe(text: str) -> str:
            return scrubber.clean(one_line(text))

        quotes = [replace(q, says=safe(q.says), source=safe(q.source)) for q in self.evidence]
        return replace(
            self, sentences=[safe(s) for s in self.sentences], evidence=quotes, next=[safe(n) for n in self.next]
        )
