"""Small files written so that a reader sees the old or the new one, never half, and read without ever waiting.

Standard library only and Python 3.9 syntax: the node agent carries this file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO


def read_whole(path: os.PathLike[str] | str) -> bytes:
    """All bytes of a regular file; anything else is an OSError: a FIFO would wait, a device may never end."""
    with open_regular(path) as file:
        return file.read()


def read_part(path: os.PathLike[str] | str, most: int, end: bool = False) -> bytes:
    """The first bytes of a regular file, or the last ones, so many at most; none of one that cannot be read."""
    try:
        with open_regular(path) as file:
            if end:
                file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most)
    except OSError:
        return b""


def open_regular(path: os.PathLike[str] | str) -> BinaryIO:
    """A regular file, open for reading."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


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
