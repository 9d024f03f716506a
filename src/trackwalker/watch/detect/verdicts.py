"""Diagnosis on trigger: `trackwalker diagnose` in a process of its own, one at a time, with a time limit.

In another process because it may need gigabytes and minutes; the watcher of a hundred jobs has neither.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LIMIT_S = 300.0
_NICE = 10


@dataclass
class _Running:
    incident: str
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    until: float


class Diagnoses:
    """A queue of jobs to diagnose."""

    def __init__(self, folder: Path, command: Sequence[str] = (), limit_s: float = LIMIT_S) -> None:
        self._folder = folder
        self._command = list(command) or [sys.executable, "-m", "trackwalker", "diagnose", "--json"]
        self._limit_s = limit_s
        self._waiting: dict[str, tuple[Path, bool]] = {}
        self._running: _Running | None = None

    def ask(self, incident: str, job: Path, first: bool = True) -> None:
        """Have a job diagnosed for an incident, after those that came before; `first`: before those that can wait."""
        self._waiting.setdefault(incident, (job, first))

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return self._running is None and not self._waiting

    def step(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Start the next one, end one that takes too long; what has come of those that ended."""
        done = []
        if self._running is not None:
            code = self._running.process.poll()
            if code is None and time.monotonic() < self._running.until:
                return []
            done.append((self._running.incident, self._finish(self._running)))
            self._running = None
        if self._waiting:
            incident = next((name for name, (_, first) in self._waiting.items() if first), next(iter(self._waiting)))
            job, _ = self._waiting.pop(incident)
            self._running = self._start(incident, job)
        return done

    def close(self) -> None:
        """End what runs."""
        if self._running is not None:
            self._finish(self._running)
            self._running = None

    def _start(self, incident: str, job: Path) -> _Running | None:
        self._folder.mkdir(parents=True, exist_ok=True)
        out = (self._folder / "verdict.json").open("w+b")
        try:
            process = subprocess.Popen(
                # timeout: it ends in time even when we do not live to see it.
                ["timeout", f"{self._limit_s:g}", "nice", f"-n{_NICE}", *self._command, str(job)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            out.close()
            return None
        return _Running(incident, process, out, time.monotonic() + self._limit_s)

    def _finish(self, running: _Running) -> dict[str, Any] | None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)  # its Prometheus, too
        running.process.wait()
        with running.out as out:
            out.seek(0)
            try:
                return essence(json.loads(out.read()))
            except (ValueError, KeyError, TypeError):
                return None  # it had nothing to read, or took too long


def essence(verdict: dict[str, Any]) -> dict[str, Any]:
    """What a message says of a verdict; the whole of it is one command away."""
    roots = [c for c in verdict["causes"] if c["role"] == "root"]
    return {
        "outcome": verdict["outcome"],
        "status": verdict["status"],
        "summary": verdict["summary"],
        "roots": [{"cause": c["cause"], "hosts": c["hosts"], "confidence": c["confidence"]} for c in roots],
        "actions": [a["do"] for a in verdict["actions"][:2]],
    }


def same(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether two verdicts say the same: a confidence that moved a little is no news."""

    def said(verdict: dict[str, Any] | None) -> Any:
        return verdict and (verdict["outcome"], [(r["cause"], r["hosts"]) for r in verdict["roots"]])

    return bool(said(one) == said(other))
