"""Read a growing journal piece by piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from trackwalker.job.journal import well_formed
from trackwalker.job.whole import open_regular


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
