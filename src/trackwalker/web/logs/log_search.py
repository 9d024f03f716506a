"""A plain text looked for in a log of any size, forwards or backwards, for a bounded time."""

from __future__ import annotations

import time
from dataclasses import dataclass

from trackwalker.logs.scanning.window import BLOCK, Line, OpenLog, Wanted


@dataclass(frozen=True)
class Needle:
    """What is looked for. Written in small letters it is found in any case, as many editors do it."""

    text: str

    @property
    def folds(self) -> bool:
        """Whether large and small letters are alike."""
        return self.text == self.text.lower()

    def pieces(self, text: str) -> tuple[tuple[str, bool], ...]:
        """A line cut into what is not and what is the text."""
        # Lowering may change the length of a text outside ASCII, so only ASCII is folded; the search does the same.
        where = _fold(text) if self.folds else text
        out: list[tuple[str, bool]] = []
        at = 0
        while self.text and (found := where.find(self.text, at)) >= 0 and len(out) < 400:
            out += [(text[at:found], False), (text[found : found + len(self.text)], True)]
            at = found + len(self.text)
        return (*out, (text[at:], False))


@dataclass(frozen=True)
class Hit:
    """Where a search ended: at a line with the text, at an end of the log, or where its time was over."""

    at: int
    line: Line | None = None
    stopped: bool = False


def search(log: OpenLog, needle: Needle, at: int, back: bool, seconds: float, wanted: Wanted | None = None) -> Hit:
    """The next place from a byte on, or the last one before it, on a line that is wanted."""
    sought, until = needle.text.encode(), time.monotonic() + seconds
    while True:
        found, at = (_before if back else _after)(log, sought, needle.folds, at, until)
        if found < 0:
            return Hit(at, stopped=0 < at < log.size)
        line = log.line_at(found)
        if wanted is None or wanted(line.raw):
            return Hit(found, line)
        at = line.start if back else line.end


@dataclass(frozen=True)
class Hits:
    """Which hit one is, and how many there are; `whole` says that the log was looked through for that."""

    number: int
    total: int
    whole: bool


def count(log: OpenLog, needle: Needle, at: int, seconds: float, wanted: Wanted | None = None) -> Hits:
    """How many times the text occurs, and how often up to a place, as far as a bounded time goes."""
    sought, until = needle.text.encode(), time.monotonic() + seconds
    number = total = begin = 0
    while begin < log.size:
        block = log.read(begin, BLOCK + len(sought) - 1)
        where = block.lower() if needle.folds else block
        found = where.find(sought)
        while 0 <= found < BLOCK:
            if wanted is None or wanted(log.line_at(begin + found).raw):
                total += 1
                number += begin + found <= at
            found = where.find(sought, found + 1)
        begin += BLOCK
        if time.monotonic() > until:
            return Hits(number, total, begin >= log.size)
    return Hits(number, total, True)


def _after(log: OpenLog, sought: bytes, fold: bool, at: int, until: float) -> tuple[int, int]:
    """Where the text begins at or after a byte, or -1 and how far was looked."""
    while at < log.size:
        block = log.read(at, BLOCK + len(sought) - 1)  # a text may lie across two blocks
        found = (block.lower() if fold else block).find(sought)
        if found >= 0:
            return at + found, at
        at = at + BLOCK if len(block) == BLOCK + len(sought) - 1 else log.size
        if time.monotonic() > until:
            return -1, at
    return -1, log.size


def _before(log: OpenLog, sought: bytes, fold: bool, at: int, until: float) -> tuple[int, int]:
    """Where the text begins before a byte, or -1 and how far was looked."""
    at = min(at, log.size)
    while at > 0:
        begin = max(0, at - BLOCK)
        block = log.read(begin, at - begin + len(sought) - 1)
        found = (block.lower() if fold else block).rfind(sought)
        if found >= 0:
            return begin + found, begin
        at = begin
        if time.monotonic() > until:
            return -1, at
    return -1, 0


def _fold(text: str) -> str:
    return text.translate(_LOWER)


_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
