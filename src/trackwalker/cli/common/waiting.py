"""What a command that takes longer than two seconds shows meanwhile: how far it is, and how long it will still take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from trackwalker.cli.common.spans import clock
from trackwalker.job.advance import listening
from trackwalker.report.text import clip, one_line

_AFTER_S = 2.0  # before that nobody wonders
_EVERY_S = 30.0  # where the line cannot be replaced
_WIDTH = 78


class Waiting:
    """One line on stderr: replaced on a terminal, repeated now and then elsewhere."""

    def __init__(self, out: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._out, self._now = out or sys.stderr, now
        self._live = self._out.isatty()
        self._began = self._said = now()
        self._shown = False

    def rest(self, done: int, of: int) -> str:
        """How long the rest will take at the speed so far, as the end of a sentence; empty where that is not known."""
        spent = self._now() - self._began
        known = 0 < done < of and spent >= _AFTER_S
        return f", about {clock(spent / done * (of - done))} left" if known else ""

    def show(self, done: int, of: int, what: str) -> None:
        """So many of so many are done."""
        now = self._now()
        if now - self._began < _AFTER_S or (not self._live and now - self._said < _EVERY_S):
            return
        self._said = now
        self._write(clip(one_line(f"{done} of {of} {what}{self.rest(done, of)}"), _WIDTH))

    def _write(self, text: str) -> None:
        begin, end = ("\r\x1b[K", "") if self._live else ("", "\n")
        self._out.write(f"{begin}{text}{end}")
        self._out.flush()
        self._shown = self._live

    def close(self) -> None:
        """Leave the line empty."""
        if self._shown:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._shown = False


@contextmanager
def waiting() -> Iterator[Waiting]:
    """Show how far the work inside is."""
    line = Waiting()
    try:
        with listening(line.show):
            yield line
    finally:
        line.close()
