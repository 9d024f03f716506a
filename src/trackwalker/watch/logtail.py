"""Progress of a job that has only a log (an upstream job): its step lines, as they are written."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

from trackwalker.job.dialects import needles, read_step
from trackwalker.logs.dialect import SUMMARY, TASK_LABEL

_MOST = 4 << 20  # bytes in one look
_FIRST = 16 << 20  # of a log that is there already
_PERIOD = re.compile(rb"Config param checkpoint_period: (\d+)")
_EVALUATES = re.compile(rb"Config param eval_interval: (\d+)")
_SAVING = re.compile(rb"Config param enable_checkpointing: (True|true)")
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
        words = (b"JOB SUMMARY", *needles())
        lines = [line for line in data[:end].split(b"\n") if any(word in line for word in words)]
        records = [r for r in map(self._record, lines) if r is not None]
        return _timed(records, min(stat.st_mtime, now)) if first else [{**r, "t": now} for r in records]

    def _begin(self, head: bytes, size: int) -> None:
        found = [_PERIOD.search(head) if _SAVING.search(head) else None, _EVALUATES.search(head)]
        self.periods = tuple(period for match in found if match and (period := int(match[1])) > 1)
        self._offset, self._torn, self.ended = max(0, size - _FIRST), b"", False

    def _record(self, raw: bytes) -> dict[str, Any] | None:
        line = raw.decode("utf-8", "replace")
        label = TASK_LABEL.match(line)
        if SUMMARY.match(line[label.end() :] if label else line):
            self.ended = True
            return None
        found = read_step(line)
        if found is None or found.step is None:
            return None
        rank = int(label[1]) if label else 0
        seconds = {"seconds": found.seconds} if math.isfinite(found.seconds) else {}
        loss: dict[str, Any] = {}
        if math.isfinite(found.loss) or found.no_number:  # what is no number travels as a word, as in a journal
            loss["loss"] = found.loss if math.isfinite(found.loss) else str(found.loss)
        return {"rank": rank, "phase": "train", "step": found.step, **seconds, **loss}


def _timed(records: list[dict[str, Any]], last: float) -> list[dict[str, Any]]:
    at, ahead = last, None
    for record in reversed(records):
        if ahead is not None and record["step"] < ahead["step"]:
            at -= ahead.get("seconds", 0.0)
        ahead = record
        record["t"] = at
    return records
