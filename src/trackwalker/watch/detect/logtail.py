"""Progress of a job that has only a log (an upstream job): its step lines, as they are written."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trackwalker.job.dialects import needles
from trackwalker.logs.scanning.chunk import LABEL
from trackwalker.logs.scanning.scan import StepLines
from trackwalker.logs.scanning.steps import StepReader, Steps

_MOST = 4 << 20  # bytes in one look
_FIRST = 16 << 20  # of a log that is there already
_PERIOD = re.compile(rb"Config param checkpoint_period: (\d+)")
_EVALUATES = re.compile(rb"Config param eval_interval: (\d+)")
_SAVING = re.compile(rb"Config param enable_checkpointing: (True|true)")
_SUMMARY = re.compile(rb"^(?:\s*\d+: )?=+ JOB SUMMARY =+")
_HEAD = 1 << 20


class LogTail:
    """Turns new step lines into progress records.

    A log tells no time. Lines of the first look get theirs from the file's last change, counted back by their own
    seconds; later ones are as old as the last look.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.periods: tuple[int, ...] = ()  # of saves and evaluations
        self.ended = False  # the launcher's summary is there
        self.behind = False
        self._offset = -1
        self._torn = b""
        self._reader = StepReader()  # the record's own
        self._lines = 0

    def new(self, now: float) -> list[dict[str, Any]]:
        """The steps that were logged since the last look."""
        try:
            with self.path.open("rb") as f:
                stat = os.fstat(f.fileno())
                first = self._offset < 0 or stat.st_size < self._offset
                if first:
                    self._begin(f.read(_HEAD), stat.st_size)
                if stat.st_size <= self._offset:
                    return []
                f.seek(self._offset)
                data = f.read(_FIRST if first else _MOST)
        except OSError:
            return []
        self._offset += len(data)
        self.behind = self._offset < stat.st_size
        data = self._torn + data
        end = data.rfind(b"\n") + 1
        self._torn = data[end:][-_MOST:]
        records = self._records(data[:end].split(b"\n"))
        return _timed(records, min(stat.st_mtime, now)) if first else [{**r, "t": now} for r in records]

    def _begin(self, head: bytes, size: int) -> None:
        found = [_PERIOD.search(head) if _SAVING.search(head) else None, _EVALUATES.search(head)]
        self.periods = tuple(period for match in found if match and (period := int(match[1])) > 1)
        self._offset, self._torn, self.ended = max(0, size - _FIRST), b"", False
        self._reader, self._lines = StepReader(), 0

    def _records(self, lines: list[bytes]) -> list[dict[str, Any]]:
        """What the record would read in these lines, in their order."""
        words = needles()
        steps = [(n, line) for n, line in enumerate(lines, self._lines + 1) if any(word in line for word in words)]
        self._lines += len(lines)
        self.ended = self.ended or any(_SUMMARY.match(line) for line in lines if b"JOB SUMMARY" in line)
        if not steps:
            return []
        numbers, texts = zip(*steps, strict=True)
        starts = [text[:LABEL] for text in texts]
        if self._reader.label is None:
            self._reader.choose(starts)
        self._reader.take(StepLines(b"\n".join(texts), np.array(numbers, np.int64), starts=starts))
        own = self._reader.drain()
        told = [row for rank, each in {own.rank or 0: own, **own.others}.items() for row in _rows(rank, each)]
        return [record for _, record in sorted(told, key=lambda row: row[0])]


def _rows(rank: int, steps: Steps) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and progress record of one rank's steps."""
    columns = (c.tolist() for c in (steps.line, steps.step, steps.seconds, steps.loss, steps.has_loss))
    for line, step, seconds, loss, no_number in zip(*columns, strict=True):
        record = {"rank": rank, "phase": "train", "step": step}
        if math.isfinite(seconds):
            record["seconds"] = seconds
        if math.isfinite(loss) or no_number:  # what is no number travels as a word, as in a journal
            record["loss"] = loss if math.isfinite(loss) else str(loss)
        yield line, record


def _timed(records: list[dict[str, Any]], last: float) -> list[dict[str, Any]]:
    at, ahead = last, None
    for record in reversed(records):
        if ahead is not None and record["step"] < ahead["step"]:
            at -= ahead.get("seconds", 0.0)
        ahead = record
        record["t"] = at
    return records
