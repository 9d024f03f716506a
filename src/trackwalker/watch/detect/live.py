"""Notice trouble in a running job within seconds, from its own progress; the diagnosis decides what it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from trackwalker.job.journal import well_formed
from trackwalker.job.whole import open_regular
from trackwalker.record.journal import Done, entry
from trackwalker.record.masks import WARM_UP_STEPS
from trackwalker.record.stall import KNOWN, step_limit

_SLOW_RATIO = 1.25
_SLOW_FOR_S = 8.0
_SLOW_STEPS = 5


# Read a growing journal piece by piece.
class Follower:
    """Yields the records added to a journal since the last look.

    `most` bounds what one look reads: a watcher of many jobs shall not hold a day of one of them in memory.
    """

    def __init__(self, path: Path, most: int = -1) -> None:
        self._path, self._most = path, most
        self._offset = 0
        self.behind = False  # the last look did not reach the end

    def skip_to_last(self, size: int) -> None:
        """Begin with the last `size` bytes: what a long run did days ago changes nothing now."""
        try:
            self._offset = max(0, self._path.stat().st_size - size)
        except OSError:
            self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """Whole new records; an unfinished last line waits for the next look."""
        try:
            with open_regular(self._path) as f:
                if f.seek(0, 2) < self._offset:  # another file by now
                    self._offset = 0
                f.seek(self._offset)
                data = f.read(self._most)
        except OSError:  # not there yet, or its file system is away
            return []
        self.behind = 0 < self._most <= len(data)
        end = data.rfind(b"\n") + 1
        if self.behind and not end:
            end = len(data)  # a line without end: not one of ours
        self._offset += end
        records = []
        for line in data[:end].splitlines():
            try:
                record = orjson.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and well_formed(record):
                records.append(record)
        return records


@dataclass(frozen=True)
class Notice:
    """Something that looks wrong, with the moment it was noticed."""

    kind: Literal["stall", "slow", "failure", "end"]
    text: str
    time: float


@dataclass
class LiveWatch:
    """Follows one job directory."""

    job_dir: Path
    steps: dict[int, float] = field(default_factory=dict)  # step -> when its last rank completed it
    losses: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._progress = Follower(self.job_dir / "progress.jsonl")
        self._events = Follower(self.job_dir / "events.jsonl")
        self._pending: list[Notice] = []
        self.phase = "starting"

    def look(self, now: float | None = None) -> Notice | None:
        """Take in what is new and say whether something looks wrong."""
        now = time.time() if now is None else now
        for record in self._progress.new():
            self.phase = str(record.get("phase", self.phase))
            if isinstance(done := entry(record), Done):
                self.steps[done.step] = max(self.steps.get(done.step, 0.0), done.at)
                if done.loss is not None:
                    self.losses[done.step] = done.loss
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

    @property
    def last_step(self) -> int | None:
        """The latest completed step."""
        return max(self.steps, default=None)

    @property
    def step_seconds(self) -> float | None:
        """The recent step time."""
        seconds = self._seconds()[1]
        return float(np.median(seconds[-20:])) if len(seconds) else None

    def _seconds(
        self,
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
        ends = np.array([self.steps[s] for s in sorted(self.steps)][WARM_UP_STEPS:])
        return ends[1:], np.diff(ends)

    def _stall(self, now: float) -> Notice | None:
        ends, seconds = self._seconds()
        if len(seconds) < KNOWN:
            return None
        limit = step_limit(seconds)
        silent = now - float(ends[-1])
        if silent <= limit:
            return None
        return Notice("stall", f"no step for {silent:.0f} s after step {self.last_step} (limit {limit:.0f} s)", now)

    def _slow(self, now: float) -> Notice | None:
        ends, seconds = self._seconds()
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
