"""The audit log: one line for every call of a tool, in the order they came; lines are added, never changed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trackwalker.errors import UsageError
from trackwalker.job.journal import Journal
from trackwalker.job.scrub import Scrubber

Outcome = Literal["begin", "ok", "refused", "error"]
_LONGEST = 2000  # characters of the arguments of one call


@dataclass(frozen=True)
class Caller:
    """Who calls, as a policy names them, and by which way."""

    who: str = "mcp"
    way: str = "stdio"


class Audit:
    """An open audit log. A call that cannot be written down is not carried out: `note` raises OSError."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            self._journal = Journal(path)
        except OSError as e:
            raise UsageError(f"cannot write the audit log {path}: {e.strerror}; give another with --audit") from e
        self._lock = threading.Lock()  # tools run on several threads

    def note(
        self,
        caller: Caller,
        tool: str,
        args: Mapping[str, Any],
        outcome: Outcome,
        *,
        says: str = "",
        size: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Write one line; secrets in the arguments are starred first."""
        record = {
            "t": round(time.time(), 3),
            "who": caller.who,
            "way": caller.way,
            "tool": tool,
            "args": _plain(args),
            "outcome": outcome,
            "says": _scrubbed(says)[:_LONGEST],
            "bytes": size,
            "seconds": round(seconds, 3),
        }
        with self._lock:
            self._journal.append(record)

    def close(self) -> None:
        """Close the file."""
        self._journal.close()


def _plain(args: Mapping[str, Any]) -> Any:
    """The arguments without secrets; ones that are too long are cut, and then they are text."""
    scrubber = Scrubber()
    scrubber.learn_document(dict(args))
    cleaned = scrubber.clean_document(dict(args))
    text = json.dumps(cleaned, default=str)
    return cleaned if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _scrubbed(text: str) -> str:
    scrubber = Scrubber()
    scrubber.learn(text)
    return scrubber.clean(text)
