"""The literals a scan looks for, compiled so that one pass over the bytes finds all of them in any case of letters."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property

import hyperscan
import numpy as np
from numpy.typing import NDArray

SHORTEST = 7  # bytes of a needle: shorter words stand in too many lines that mean nothing
Ints = NDArray[np.int64]


class Finder:
    """Finds every occurrence of some literals; safe to share between threads."""

    def __init__(self, literals: Sequence[bytes], steps: Sequence[bytes] = ()) -> None:
        numbers: dict[bytes, list[int]] = {}
        for number, literal in enumerate([*literals, *steps]):
            numbers.setdefault(literal.lower(), []).append(number)
        self.numbers = list(numbers.values())  # by text: the needles that read so
        self.is_text = np.array([n[0] < len(literals) for n in self.numbers], np.bool_)
        self.is_step = np.array([n[-1] >= len(literals) for n in self.numbers], np.bool_)
        self._texts = list(numbers)
        self._lengths = np.array([len(t) for t in self._texts], np.int64)
        self._scratch = threading.local()
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        count = len(self._texts)
        flags = [hyperscan.HS_FLAG_CASELESS] * count
        self._database.compile(self._texts, ids=list(range(count)), elements=count, flags=flags, literal=True)

    def find(self, data: memoryview) -> tuple[Ints, Ints]:
        """(place, text) of every occurrence, in the order of their ends."""
        if not hasattr(self._scratch, "space"):  # what the engine writes to while it searches: one for each thread
            self._scratch.space = hyperscan.Scratch(self._database)
        ends: list[int] = []
        texts: list[int] = []

        def found(text: int, _begin: int, end: int, _flags: int, _context: object) -> None:
            ends.append(end)
            texts.append(text)

        self._database.scan(data, match_event_handler=found, scratch=self._scratch.space)  # type: ignore[type-var]  # any buffer will do
        which = np.array(texts, np.int64)
        return np.array(ends, np.int64) - self._lengths[which], which


class Needles:
    """The literals to look for; those at `steps` are so frequent that their lines are handled in bulk."""

    def __init__(self, literals: Sequence[bytes], steps: Sequence[bytes] = (), plenty: frozenset[int] = frozenset()):
        self.literals = list(literals)
        self.steps = [n.lower() for n in steps]
        self.plenty = plenty  # needles whose every line counts, however many there are
        short = [n for n in (*self.literals, *self.steps) if len(n) < SHORTEST]
        if short:
            raise ValueError(f"needles shorter than {SHORTEST} bytes: {short}")
        self.all = Finder(self.literals, self.steps)

    @cached_property
    def text(self) -> Finder:
        """Without the step needles, for logs whose step lines are told by their label."""
        return Finder(self.literals)
