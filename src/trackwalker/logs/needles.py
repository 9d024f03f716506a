"""The literals a scan looks for, compiled so that one pass over the bytes finds all of them in any case of letters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import hyperscan
import numpy as np
from numpy.typing import NDArray

SHORTEST = 7  # bytes of a needle: shorter words stand in too many lines that mean nothing
_FLOOD = 1024  # of one needle in one search: each costs a call, so a line that floods the log is searched for no longer
_MOST_ENGINES = 16
Ints = NDArray[np.int64]


class Hits(NamedTuple):
    """Where a search found what."""

    places: Ints
    texts: Ints
    dropped: int  # repeats of flooding needles that were only counted


class Finder:
    """Finds every occurrence of some literals; safe to share between threads."""

    def __init__(self, literals: Sequence[bytes], endless: frozenset[int]) -> None:
        numbers: dict[bytes, list[int]] = {}
        for number, literal in enumerate(literals):
            numbers.setdefault(literal.lower(), []).append(number)
        self.numbers = list(numbers.values())  # by text: the needles that read so
        self._texts = list(numbers)
        self._lengths = np.array([len(t) for t in self._texts], np.int64)
        self._longest = int(self._lengths.max(initial=0))
        self._limits = [_FLOOD if endless.isdisjoint(n) else None for n in self.numbers]
        self._engines = {frozenset[int](): _Engine(dict(enumerate(self._texts)))}

    def find(self, data: memoryview) -> Hits:
        """Every occurrence, in the order of their ends; of what floods the data the first thousand."""
        ends: list[int] = []
        texts: list[int] = []
        counts = [0] * len(self._texts)
        begin = stop = dropped = 0
        quiet: frozenset[int] = frozenset()

        def found(text: int, _begin: int, end: int, _flags: int, _context: object) -> bool | None:
            if end + begin <= stop:
                return None  # seen before the search was begun anew
            ends.append(end + begin)
            texts.append(text)
            counts[text] += 1
            return counts[text] == self._limits[text]

        while not self._engine(quiet).search(data[begin:], found):
            text, stop = texts[-1], ends[-1]
            quiet |= {text}
            dropped += bytes(data[stop:]).count(bytes(data[stop - len(self._texts[text]) : stop]))
            begin = max(0, stop - self._longest)
        which = np.array(texts, np.int64)
        return Hits(np.array(ends, np.int64) - self._lengths[which], which, dropped)

    def _engine(self, quiet: frozenset[int]) -> _Engine:
        """The search without some texts; they are few and the same again and again."""
        if quiet not in self._engines:
            engine = _Engine({i: text for i, text in enumerate(self._texts) if i not in quiet})
            if len(self._engines) >= _MOST_ENGINES:
                return engine
            self._engines[quiet] = engine
        return self._engines[quiet]


class _Engine:
    """One compiled set of texts."""

    def __init__(self, texts: dict[int, bytes]) -> None:
        self._scratch = threading.local()  # what a search writes to: one for each thread
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        flags = [hyperscan.HS_FLAG_CASELESS] * len(texts)
        self._database.compile(list(texts.values()), list(texts), len(texts), flags, literal=True)

    def search(self, data: memoryview, found: Callable[[int, int, int, int, object], bool | None]) -> bool:
        """Call `found` for every occurrence; whether the end was reached before it said stop."""
        if not hasattr(self._scratch, "space"):
            self._scratch.space = hyperscan.Scratch(self._database)
        try:
            self._database.scan(data, found, scratch=self._scratch.space)  # type: ignore[type-var]  # any buffer will do
        except hyperscan.ScanTerminated:
            return False
        return True


class Needles:
    """The literals to look for; those at `steps` are so frequent that their lines are handled in bulk."""

    def __init__(self, literals: Sequence[bytes], steps: Sequence[bytes] = (), plenty: frozenset[int] = frozenset()):
        self.literals = list(literals)
        self.steps = [n.lower() for n in steps]
        self.plenty = plenty  # needles whose every line counts, however many there are
        short = [n for n in (*self.literals, *self.steps) if len(n) < SHORTEST]
        if short:
            raise ValueError(f"needles shorter than {SHORTEST} bytes: {short}")
        self.text = Finder(self.literals, plenty)
        self._step_finder = Finder(self.steps, frozenset(range(len(self.steps)))) if self.steps else None

    def find_steps(self, data: memoryview) -> Ints:
        """Where step lines hold their needle."""
        return self._step_finder.find(data).places if self._step_finder else np.zeros(0, np.int64)
