"""Ray's session logs, copied into the job directory as they grow."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class LogMirror:
    """Follows one session's log folder.

    A copy that is appended to, not a link: Ray's processes keep the files they opened, so a folder that is moved
    away under them loses the rest of every log, and a job directory that hangs would hang them.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._inodes: dict[str, int] = {}

    def sync(self) -> None:
        """Append what is new; a log that was rotated begins anew."""
        for folder, _, names in os.walk(self._source):
            to = self._target / os.path.relpath(folder, self._source)
            to.mkdir(parents=True, exist_ok=True)
            for name in names:
                self._append(os.path.join(folder, name), to / name)

    def _append(self, source: str, target: Path) -> None:
        try:
            with open(source, "rb") as log:
                stat = os.fstat(log.fileno())
                copied = target.stat().st_size if target.exists() else 0
                rotated = self._inodes.setdefault(source, stat.st_ino) != stat.st_ino or stat.st_size < copied
                self._inodes[source] = stat.st_ino
                if rotated or stat.st_size > copied:
                    log.seek(0 if rotated else copied)
                    with target.open("wb" if rotated else "ab") as copy:
                        shutil.copyfileobj(log, copy)
        except FileNotFoundError:
            return  # rotated away or removed since we listed it
