"""Journals of the watcher: a record is on disk before anybody acts on it, and an old journal is made short at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from trackwalker.job.journal import Journal
from trackwalker.job.redact import HIDDEN
from trackwalker.job.whole import write_whole

LONG = 4 << 20  # bytes of journal after which a start writes only what still matters


class DurableJournal(Journal):
    """A journal whose records are on disk when `append` returns, without the watcher's own secrets."""

    def __init__(self, path: Path, secrets: Iterable[str] = ()) -> None:
        super().__init__(path)
        self._secrets = [json.dumps(secret)[1:-1].encode() for secret in secrets if secret]

    def copy(self, line: bytes) -> None:
        """Write one line and wait for the disk."""
        for secret in self._secrets:  # a job may have printed one
            line = line.replace(secret, HIDDEN.encode())
        super().copy(line)
        os.fsync(self._fd)


def is_long(path: Path) -> bool:
    """Whether a journal is worth making short."""
    return path.exists() and path.stat().st_size > LONG


def rewrite(path: Path, lines: Iterable[bytes]) -> None:
    """Put these lines in the place of a file; a crash leaves the old ones or the new ones."""
    write_whole(path, b"".join(lines), sync=True)
