"""A log that still grows: each look reads what is new and gives what one reading of the whole would give."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import BinaryIO

from trackwalker.errors import EvidenceError
from trackwalker.logs.chunk import CHUNK
from trackwalker.logs.index import Gatherer, LogIndex
from trackwalker.logs.scan import Reading, Scan, chunks, settled
from trackwalker.logs.signatures import load

_MARK = 64  # bytes before the place we read on from: in a log that was emptied and refilled they are others


class FollowedScan:
    """Keeps what the settled pieces of a log gave; the rest, at most two pieces, is read anew at every look.

    The file stays open, so a log that is renamed is followed to its end; a new file under the old name, and one that
    was emptied, is read from its beginning. Set `path` when the new name is known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: _Held | None = None

    def close(self) -> None:
        """Let the file go."""
        if self._held is not None:
            self._held.file.close()
        self._held = None

    def update(self) -> LogIndex | None:
        """The index of the log as it is now, None while there is nothing in it."""
        try:
            held = self._current()
            size = os.fstat(held.file.fileno()).st_size if held else 0
            return held.read(size) if held and size else None
        except OSError as e:
            raise EvidenceError(f"cannot read the log {self.path}: {e.strerror}") from e

    def _current(self) -> _Held | None:
        """The file under our name, or the one we hold when that name is gone."""
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return self._held
        if self._held is not None and not os.path.samestat(named, os.fstat(self._held.file.fileno())):
            self.close()
        if self._held is None:
            self._held = _Held(self.path, self.path.open("rb"))
        elif not self._held.same_text():
            self._held = _Held(self.path, self._held.file)
        return self._held


class _Held:
    """An open log and what its settled pieces gave."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.file = file
        self._path = path
        self._gatherer = Gatherer(path, load())
        self._source = self._gatherer.source(path)
        self._reading = Reading(file.fileno(), self._gatherer.needles)
        self._mark = b""

    def same_text(self) -> bool:
        """Whether the file still reads the same before the place we read on from."""
        return os.pread(self.file.fileno(), len(self._mark), self._reading.done * CHUNK - len(self._mark)) == self._mark

    def read(self, size: int) -> LogIndex:
        """Read on; what may still change is read into copies."""
        reading, gatherer, source = self._reading, self._gatherer, self._source
        reading.advance(size, settled(size), partial(gatherer.take, source), source.steps.take, source.steps.choose)
        if reading.done:
            self._mark = os.pread(self.file.fileno(), _MARK, reading.done * CHUNK - _MARK)
        reading, gatherer, source = reading.fork(), gatherer.fork(), source.fork()
        reading.advance(size, chunks(size), partial(gatherer.take, source), source.steps.take, source.steps.choose)
        scan = Scan(self._path)
        reading.finish(scan, source.steps.take)
        gatherer.close(source, scan)
        return gatherer.result(scan)
