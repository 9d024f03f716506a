"""What a demo notices of its own run within seconds: a stall, slow steps, a failure, the end.

Sooner and coarser than the watcher's rules, which ask for a second signal: here it is known that something was broken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from trackwalker.record.stall import KNOWN, step_limit
from trackwalker.watch.detect.live import Follower, LiveWatch

_SLOW_RATIO = 1.25
_SLOW_FOR_S = 8.0
_SLOW_STEPS = 5


@dataclass(frozen=True)
class Notice:
    """Something that looks wrong, with the moment it was noticed."""

    kind: Literal["stall", "slow", "failure", "end"]
    text: str
    time: float


class Noticing(LiveWatch):
    """Follows one job directory, and says what looks wrong."""

    def __init__(self, job_dir: Path) -> None:
        super().__init__(job_dir)
        self._events = Follower(job_dir / "events.jsonl")
        self._pending: list[Notice] = []

    def notice(self, now: float | None = None) -> Notice | None:
        """Take in what is new and say whether something looks wrong."""
        now = time.time() if now is None else now
        self.look()
        for event in self._events.new():
            data = event.get("data") or {}
            if event.get("kind") == "first-failure":
                text = f"rank {event.get('rank')} ({event.get('host')}) {data.get('cause', 'failed')}"
                self._pending.append(Notice("failure", text, now))
            if event.get("kind") == "run-end":
                self._pending.append(Notice("end", f"the run ended with exit code {data.get('exit')}", now))
        if self._pending:  # both may come within one look: each is told once, in order
            return self._pending.pop(0)
        return self._stall(now) or self._slow(now)

    def _stall(self, now: float) -> Notice | None:
        ends, seconds = self.paces()
        if len(seconds) < KNOWN:
            return None
        limit = step_limit(seconds)
        silent = now - float(ends[-1])
        if silent <= limit:
            return None
        return Notice("stall", f"no step for {silent:.0f} s after step {self.last_step} (limit {limit:.0f} s)", now)

    def _slow(self, now: float) -> Notice | None:
        ends, seconds = self.paces()
        recent = ends > now - _SLOW_FOR_S
        recent[-_SLOW_STEPS:] = True  # steps may take longer than that, or come to
        if (~recent).sum() < KNOWN or now - float(ends[0]) < 2 * _SLOW_FOR_S:
            return None
        before, after = float(np.median(seconds[~recent])), seconds[recent]
        # Half of the recent steps must be slower than nearly all earlier ones: a hiccup is not a phase, but a rank
        # that is slowed only when another process runs makes every other step slow.
        usual = float(np.quantile(seconds[~recent], 0.9))
        slower = float(np.mean(after > max(_SLOW_RATIO * before, usual)))
        if slower < 0.5 or float(np.mean(after)) <= _SLOW_RATIO * before:
            return None
        return Notice("slow", f"steps take {float(np.mean(after)):.2f} s instead of {before:.2f} s", now)
