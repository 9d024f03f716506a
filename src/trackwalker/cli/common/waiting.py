"""What a command that takes longer than two seconds shows meanwhile: how far it is, and how long it will still take."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TextIO

from trackwalker.errors import UsageError
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


_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)")


def span(text: str) -> float:
    """Seconds of `90s`, `10m`, `12h`, `30d`, `2w`."""
    found = _SPAN.fullmatch(text.strip())
    if not found:
        raise UsageError(f"'{text}' is no span of time: use 10m, 12h, 30d or 2w")
    return float(found[1]) * _UNITS[found[2]]


def since(text: str) -> float:
    """The moment that a span ago was, or that a date names (UTC)."""
    if _SPAN.fullmatch(text.strip()):
        return time.time() - span(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"'{text}' is neither a span (12h, 30d) nor a date (2026-11-16)") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def clock(seconds: float | None) -> str:
    """As squeue has it: `3-04:05:06`, `4:05:06`, `5:06`; empty where it is not known."""
    if seconds is None or not 0 <= seconds < 1e9:
        return ""
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
