"""A file as bytes, read piece by piece: a log that is cut meanwhile gives less, where a mapped one would kill us."""

from __future__ import annotations

import os
import re

CHUNK = 1 << 20


class Held:
    """An open file of the size it had when it was opened; behind what is still there, there is nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._place, self._piece = -1, b""  # the piece that was read last: lines lie side by side

    def __len__(self) -> int:
        return self._size

    def part(self, begin: int, end: int) -> bytes:
        """The bytes from one place to another, fewer where the file has become shorter."""
        end = min(end, self._size)
        if self._place <= begin and end <= self._place + len(self._piece):
            return self._piece[begin - self._place : end - self._place]
        return os.pread(self._descriptor, end - begin, begin) if begin < end else b""

    def find(self, what: bytes, begin: int) -> int:
        """Where one byte stands next, -1 where it does not."""
        while begin < self._size:
            place = begin // CHUNK * CHUNK
            if place != self._place:
                self._place, self._piece = place, self.part(place, place + CHUNK)
            found = self._piece.find(what, begin - place)
            if found >= 0:
                return place + found
            begin = place + CHUNK
        return -1

    def rfind(self, what: bytes, end: int) -> int:
        """Where one byte stood last before a place, -1 where it did not."""
        while end > 0:
            begin = max(0, end - CHUNK)
            found = self.part(begin, end).rfind(what)
            if found >= 0:
                return begin + found
            end = begin
        return -1

    def count(self, what: bytes, begin: int, end: int) -> int:
        """How often one byte stands between two places."""
        return sum(self.part(at, min(end, at + CHUNK)).count(what) for at in range(begin, end, CHUNK))

    def search(self, pattern: re.Pattern[bytes], begin: int, longest: int) -> tuple[int, int] | None:
        """Where a pattern of at most so many bytes is found next."""
        for at in range(begin, self._size, CHUNK):
            match = pattern.search(self.part(at, at + CHUNK + longest))
            if match is not None:
                return at + match.start(), at + match.end()
        return None
