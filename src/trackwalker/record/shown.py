"""Lines of the log as they stand, to be shown: the record keeps of most lines only what they say."""

from __future__ import annotations

import contextlib
import re
from itertools import islice

from trackwalker.job.dialects import read_step
from trackwalker.logs.facts import LogFacts, Quote

_TAIL = 1 << 22  # bytes at the end of a log in which a rank's last step line is looked for


def line_at(facts: LogFacts, number: int, rank: int, fallback: str) -> Quote:
    """A line by its number."""
    with contextlib.suppress(OSError), facts.path.open("rb") as f:
        for raw in islice(f, number - 1, number):
            return Quote(rank, number, raw.decode("utf-8", "replace").rstrip("\r\n"))
    return Quote(rank, number, fallback)


def last_line_of(facts: LogFacts, rank: int, step: int) -> Quote:
    """A rank's line on its last step, looked for from the end: of most ranks only the number is kept."""
    begins, number = re.compile(rb"^\s*0*%d: " % rank), facts.lines
    with contextlib.suppress(OSError), facts.path.open("rb") as f:
        f.seek(max(0, f.seek(0, 2) - _TAIL))
        lines = f.read(_TAIL).split(b"\n")
        behind = len(lines) - (0 if lines[-1] else 1)
        for at, raw in enumerate(lines):
            text = raw.decode("utf-8", "replace").rstrip("\r")
            if begins.match(raw) and (told := read_step(text)) is not None and told.step == step:
                return Quote(rank, number - behind + at + 1, text)
    return Quote(rank, number, f"{rank}: step {step}")
