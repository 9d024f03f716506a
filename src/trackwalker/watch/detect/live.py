"""A running job as its own journals tell it, piece by piece: the last step, its pace, its loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from trackwalker.job.journal import well_formed
from trackwalker.job.whole import open_regular
from trackwalker.record.journal import Done, entry
from trackwalker.record.masks import WARM_UP_STEPS
from trackwalker.stats.segments import Floats


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


@dataclass
class LiveWatch:
    """Follows one job directory."""

    job_dir: Path
    steps: dict[int, float] = field(default_factory=dict)  # step -> when its last rank completed it
    losses: dict[int, float] = field(default_factory=dict)
    phase: str = "starting"

    def __post_init__(self) -> None:
        self._progress = Follower(self.job_dir / "progress.jsonl")

    def look(self) -> None:
        """Take in what is new."""
        for record in self._progress.new():
            self.phase = str(record.get("phase", self.phase))
            if isinstance(done := entry(record), Done):
                self.steps[done.step] = max(self.steps.get(done.step, 0.0), done.at)
                if done.loss is not None:
                    self.losses[done.step] = done.loss

    @property
    def last_step(self) -> int | None:
        """The latest completed step."""
        return max(self.steps, default=None)

    @property
    def step_seconds(self) -> float | None:
        """The recent step time."""
        seconds = self.paces()[1]
        return float(np.median(seconds[-20:])) if len(seconds) else None

    def paces(self) -> tuple[Floats, Floats]:
        """When each step ended, from the second after the warm-up on, and how long it took."""
        ends = np.array([self.steps[s] for s in sorted(self.steps)][WARM_UP_STEPS:])
        return ends[1:], np.diff(ends)
