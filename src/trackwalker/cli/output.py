"""What leaves the command: UTF-8 in every locale, and no complaint when the reader of a pipe has left."""

from __future__ import annotations

import contextlib
import io
import os
import sys

_ASCII = ("ascii", "ansi_x3.4-1968", "us-ascii", "646")


def prepare() -> None:
    """A character that the locale cannot say must not end a command.

    The C locale means "nobody chose one": terminals and files read UTF-8 then. Another charset was chosen and stays,
    with a question mark for what it lacks.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            chosen = (stream.encoding or "ascii").lower()
            stream.reconfigure(encoding="utf-8" if chosen in _ASCII else None, errors="replace")


def reader_left() -> None:
    """Send what is still to come nowhere: Python flushes once more at its end, and would complain then."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
