"""Files of a job that grow: its journals (events.jsonl, progress.jsonl; JSON lines, readable after any crash), its log.

Standard library only and Python 3.9 syntax: the node agent and the trainers carry this file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from trackwalker.job.whole import read_whole

VERSION = 1
_BLOCK = 1 << 16
_LATEST = 253402300800.0  # the year 10000: no calendar holds more
# Only a line with one of these can hold a number that no arithmetic survives: most lines are not looked at again.
_SUSPICIOUS = re.compile(rb"NaN|Infinity|[eE]\+?\d{3}|\d{19}")


def encode(record: Mapping[str, Any]) -> bytes:
    """One journal line: the record with its schema version, ending in a newline."""
    line = json.dumps({"v": VERSION, **_plain(record)}, separators=(",", ":"), default=str)
    return line.encode("utf-8", "replace") + b"\n"


def _plain(value: Any) -> Any:
    # A NaN loss is news, but NaN is not JSON: non-finite numbers travel as "nan", "inf", "-inf".
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def event_record(kind: str, node: str, data: Mapping[str, Any], stage: str = "train", **place: Any) -> dict[str, Any]:
    """A record of events.jsonl as of now; `place` is the rank and its host, where it is about one."""
    where = {"stage": stage, "node": node, "rank": None, "host": None, **place}
    return {"t": time.time(), **where, "kind": kind, "data": dict(data)}


class Journal:
    """An open journal: each record is one write(2) on an O_APPEND descriptor, so writers do not tear each other."""

    def __init__(self, path: os.PathLike[str] | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(str(self.path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._torn = self._has_torn_tail()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record; a full disk or a vanished directory raises OSError and leaves earlier records whole."""
        self.copy(encode(record)[:-1])

    def copy(self, line: bytes) -> None:
        """Write one line of another journal, as it is; raises OSError as `append` does."""
        # A writer that died mid-line, or a disk that was full for a while, must not swallow the next record.
        line = b"\n" + line + b"\n" if self._torn else line + b"\n"
        self._torn = True
        if os.write(self._fd, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._torn = False

    def size(self) -> int:
        """How many bytes the journal has now."""
        return os.fstat(self._fd).st_size

    def cut_back(self, size: int) -> None:
        """Take back what its only writer appended after a size was noted."""
        if self.size() > size:
            os.ftruncate(self._fd, size)

    def close(self) -> None:
        """Close the descriptor; appending afterwards is an error."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _has_torn_tail(self) -> bool:
        size = os.fstat(self._fd).st_size
        if not size:
            return False
        with self.path.open("rb") as f:
            f.seek(size - 1)
            return f.read(1) != b"\n"


@dataclass
class Records:
    """What a journal held: the readable records, and how many lines were not."""

    items: list[dict[str, Any]] = field(default_factory=list)
    damaged: int = 0
    torn_tail: bool = False  # the last line has no newline: a writer is at work, or died there
    unreadable: str = ""  # why the file could not be read at all


def has_ended(events: list[dict[str, Any]]) -> bool:
    """Whether the run's last attempt is over: a requeued job has an end of each attempt in its journal."""
    for event in reversed(events):
        if event.get("kind") in ("run-end", "attempt-begin"):
            return bool(event.get("kind") == "run-end")
    return False


def read(path: os.PathLike[str] | str) -> Records:
    """All readable records. A missing file is empty; foreign, torn or newer-version lines are counted, not raised.

    A journal that is a directory, a FIFO or not ours to read is empty too, and `unreadable` says why.
    """
    out = Records()
    try:
        raw = read_whole(path)
    except FileNotFoundError:
        return out
    except OSError as e:
        out.unreadable = e.strerror or type(e).__name__
        return out
    lines = raw.split(b"\n")
    out.torn_tail = bool(lines[-1])
    for line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            out.damaged += 1
            continue
        ours = isinstance(record, dict) and record.get("v") == VERSION and well_formed(record)
        if ours and not (_SUSPICIOUS.search(line) and _wild(record)):
            out.items.append(record)
        else:
            out.damaged += 1
    return out


def well_formed(record: Mapping[str, Any]) -> bool:
    """Whether the fields that every reader relies on have their types; a field that is absent may be absent."""
    when, kind, data = record.get("t", 0.0), record.get("kind", ""), record.get("data")
    rank, host = record.get("rank"), record.get("host")
    dated = isinstance(when, (int, float)) and not isinstance(when, bool) and 0 <= when < _LATEST
    placed = (rank is None or type(rank) is int) and (host is None or isinstance(host, str))
    return dated and placed and isinstance(kind, str) and (data is None or isinstance(data, dict))


def _wild(value: Any) -> bool:
    """Whether a number in it is infinite, NaN, or an integer that no counter holds."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, int):
        return abs(value) >= 1 << 63
    if isinstance(value, dict):
        return any(_wild(v) for v in value.values())
    return isinstance(value, list) and any(_wild(v) for v in value)


def open_at_last(path: Path, lines: int) -> BinaryIO:
    """The file, opened where its last `lines` lines begin; a negative number means all of it."""
    file = path.open("rb")
    if lines < 0:
        return file
    end = start = file.seek(0, os.SEEK_END)
    wanted = lines
    while start > 0:
        size = min(_BLOCK, start)
        start -= size
        file.seek(start)
        block = file.read(size)
        last = len(block)
        if start + size == end and block.endswith(b"\n"):
            last -= 1  # the newline that ends the last line does not begin another
        while wanted > 0 and (at := block.rfind(b"\n", 0, last)) >= 0:
            wanted -= 1
            last = at
        if wanted <= 0:
            file.seek(start + last + 1 if lines else end)
            return file
    file.seek(0)
    return file
