"""When a run is over, as far as files and processes tell."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from trackwalker.job import journal
from trackwalker.job.processes import alive

DEAD_S = 10.0  # an agent that crashed is restarted within this time
SILENT_S = 60.0  # nothing was ever written: the launch failed before it began
STALLED_S = 600.0  # a launch began but no rank ever started: slow images take minutes, not more


class Ending:
    """Looks at a job directory cheaply and often, and says when its run has ended."""

    def __init__(self, job_dir: Path, clock: Callable[[], float] = time.monotonic, node: str = "") -> None:
        """`node`: whose processes to look for, where that is not the first one."""
        self._events = job_dir / "events.jsonl"
        self._state = job_dir / "agent" / (f"{node}.state.json" if node else "state.json")
        self._clock = clock
        self._events_size = -1
        self._changed = clock()
        self._members: list[tuple[int, int]] | None = None
        self._seen_alive = clock()

    def reason(self) -> str | None:
        """Why the run is over, None while it is not."""
        now = self._clock()
        if self._has_ended(now):
            return "the run has ended"
        self._read_state()
        if self._members is None:
            wait = SILENT_S if self._events_size < 0 else STALLED_S
            return f"no rank was started for {wait:.0f} s" if now - self._changed > wait else None
        if any(alive(pid, start) for pid, start in self._members):
            self._seen_alive = now
        elif now - self._seen_alive > DEAD_S:
            return f"neither the agent nor any rank has been alive for {DEAD_S:.0f} s"
        return None

    def _has_ended(self, now: float) -> bool:
        try:
            size = self._events.stat().st_size
        except OSError:
            return False  # not there yet, or the file system is away: no evidence either way
        if size == self._events_size:
            return False
        try:
            records = journal.read(self._events)
        except OSError:
            return False
        self._events_size, self._changed = size, now
        return journal.has_ended(records.items)

    def _read_state(self) -> None:
        try:
            state = json.loads(self._state.read_bytes())
            listed = [state["agent"], *state["ranks"]]
            members = [(int(m["pid"]), int(m["start"])) for m in listed if m.get("pid")]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return  # unreadable for a moment: what we knew still holds
        if self._members is None:
            self._seen_alive = self._clock()
        self._members = members
