"""The end of a growing log, and what comes after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 16


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
