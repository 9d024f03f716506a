"""What went wrong on which node, written down for the jobs to come: facts only, whoever reads them weighs them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from trackwalker.job.journal import Journal
from trackwalker.node.checks.result import FAIL

LEDGER = ".ledger/nodes.jsonl"  # in the workspace
_TEXT = 300


@dataclass(frozen=True)
class Incident:
    """One fact about one host in one attempt of one job."""

    t: float
    host: str
    job: str
    attempt: int
    kind: str  # check-failed, no-word, first-failure, node-lost; triage
    what: str  # the check, the stage, how it ended, the cause
    line: str = ""  # the evidence
    exit: Optional[int] = None

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """The same fact has the same key, whoever writes it."""
        return self.host, self.job, self.attempt, self.kind, self.what

    def record(self) -> dict[str, Any]:
        """For the ledger."""
        return {**asdict(self), "line": self.line[:_TEXT]}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Incident | None:
        """From the ledger; None for a record that is none."""
        try:
            named = {name: record[name] for name in ("host", "job", "kind", "what")}
            texts = {name: str(value) for name, value in named.items()}
            code = None if record.get("exit") is None else int(record["exit"])
            more = {"attempt": int(record["attempt"]), "line": str(record.get("line", "")), "exit": code}
            return cls(t=float(record["t"]), **texts, **more)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


class Scribe:
    """Writes one attempt's incidents; a ledger that cannot be written costs nothing but its lines."""

    def __init__(self, workspace: Path, job: str, attempt: int) -> None:
        self._workspace, self._job, self._attempt = workspace, job, attempt

    def stage_failed(self, notes: Mapping[int, Mapping[str, Any]]) -> None:
        """Checks that ended the job, by the hosts that failed them."""
        found = []
        failed = [{r["id"] for r in note.get("results", []) if r["status"] == FAIL} for note in notes.values()]
        common = set.intersection(*failed) if len(failed) > 1 else set()  # what all nodes fail is no node's fault
        for note in notes.values():
            for result in note.get("results", []):
                if result["status"] == FAIL and result["id"] not in common:
                    found.append(self._incident(note["host"], "check-failed", result["id"], result["text"]))
        self._write(found)

    def no_word(self, stage: str, hosts: Iterable[str]) -> None:
        """Hosts that did not report in a stage's time."""
        line = f"no word within the time of the {stage} stage"
        self._write(self._incident(host, "no-word", stage, line) for host in hosts)

    def run_ended(self, events: Iterable[Mapping[str, Any]]) -> None:
        """The rank that failed first, and nodes that never reported their end."""
        found = []
        for data in (event.get("data") or {} for event in events if event.get("kind") == "run-end"):
            first = data.get("first")
            if first:
                line = f"rank {first['rank']} {first['cause']}"
                found.append(self._incident(first["host"], "first-failure", first["cause"], line, int(first["exit"])))
            for host in data.get("missing", []):
                line = "its agent never said how its ranks ended"
                found.append(self._incident(host, "node-lost", "node-lost", line))
        self._write(found)

    def _incident(self, host: str, kind: str, what: str, line: str, code: Optional[int] = None) -> Incident:
        return Incident(time.time(), host, self._job, self._attempt, kind, what, line, code)

    def _write(self, found: Iterable[Incident]) -> None:
        listed = list(found)
        if not listed:
            return
        with contextlib.suppress(OSError):
            journal = Journal(self._workspace / LEDGER)
            for incident in listed:
                journal.append(incident.record())
            journal.close()
