"""Small files written so that a reader sees the old or the new one, never half, however many write at once.

Standard library only and Python 3.9 syntax: the node agent carries this file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: str | bytes, mode: int = 0o644, sync: bool = False) -> None:
    """Replace a file by `content`; the temporary name is unique and made exclusively, so two writers cannot tear it."""
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    aside = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
