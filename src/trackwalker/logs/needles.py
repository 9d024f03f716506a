"""The literals a scan looks for, laid out so that one table lookup per aligned word finds them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

SHORTEST = 7  # bytes of a needle: less cannot be sure to cover an aligned word
BITS = 20
FOLD = 0x20202020  # upper to lower case, and harmless to the rest: the needle itself is compared afterwards
PRIME = 2654435761
_SMALL = 1 << 18


class Needles:
    """The literals to look for; those at `steps` are so frequent that their lines are handled in bulk."""

    def __init__(self, literals: Sequence[bytes], steps: Sequence[bytes] = (), plenty: frozenset[int] = frozenset()):
        self.literals = [fold(n) for n in literals]
        self.steps = [fold(n) for n in steps]
        self.plenty = plenty  # needles whose every line counts, however many there are
        self.windows = _Windows([*self.literals, *self.steps])
        self._plain: Index | None = None
        short = [n for n in (*self.literals, *self.steps) if len(n) < SHORTEST]
        if short:
            raise ValueError(f"needles shorter than {SHORTEST} bytes: {short}")

    def index(self, sample: Bytes) -> Index:
        """The index for a log: small ones share one, a large one is worth an index of its own."""
        if len(sample) < _SMALL:
            self._plain = self._plain or Index(self, None)
            return self._plain
        return Index(self, _word_counts(sample))


def narrowed(index: Index, prefix: bytes) -> Index:
    """The same index, but of all step lines only those that begin like this: one rank's of hundreds."""
    narrow = copy(index)
    narrow.steps = _owners([fold(b"\n" + prefix)], [0])  # the window with the label: the rest is in every rank's lines
    narrow.is_step = np.zeros(1 << BITS, np.bool_)
    narrow.is_step[_slots(narrow.steps.words)] = True
    narrow.table = narrow.is_text | narrow.is_step
    return narrow


_FOLDED = bytes(b | 0x20 for b in range(256))


def fold(text: bytes) -> bytes:
    """The text as the scanner compares it: every byte with the lower-case bit set."""
    return text.translate(_FOLDED)


@dataclass(frozen=True)
class Owners:
    """Which needle may stand around which word, sorted by word, with a second word that proves it nearly always.

    Four letters are found in many words; eight of a needle's own hardly ever.
    """

    words: NDArray[np.uint32]
    needles: Ints
    offsets: Ints  # of the word in its needle
    seconds: NDArray[np.uint32]
    aways: Ints  # from the word to the second one
    shared: Ints  # how many owners the word has

    @property
    def alone(self) -> bool:
        """Whether every word has one owner only."""
        return bool((self.shared == 1).all())

    def confirm(
        self, places: Ints, words: NDArray[np.uint32], word_at: Callable[[Ints], NDArray[np.uint32]]
    ) -> tuple[Ints, Ints]:
        """(place of the needle, needle) wherever both words stand."""
        if not len(self.words):
            return places[:0], places[:0]
        first = np.minimum(np.searchsorted(self.words, words), len(self.words) - 1)
        known = self.words[first] == words
        owner, at = first[known], places[known]
        if self.alone:
            same = word_at(at + self.aways[owner]) == self.seconds[owner]
            return (at - self.offsets[owner])[same], self.needles[owner][same]
        counts = self.shared[owner]
        owner = np.repeat(owner - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
        at = np.repeat(at, counts)
        same = word_at(at + self.aways[owner]) == self.seconds[owner]
        return (at - self.offsets[owner])[same], self.needles[owner][same]


class Index:
    """The table of all words of the needles' rarest windows, and the owners of each."""

    def __init__(self, needles: Needles, counts: Ints | None) -> None:
        chosen = needles.windows.choose(counts)
        border = len(needles.literals)
        self.text = _owners(needles.literals, chosen[:border])
        self.steps = _owners(needles.steps, chosen[border:])
        self.is_text = np.zeros(1 << BITS, np.bool_)
        self.is_text[_slots(self.text.words)] = True
        self.is_step = np.zeros(1 << BITS, np.bool_)
        self.is_step[_slots(self.steps.words)] = True
        self.table = self.is_text | self.is_step

    def kinds(self, words: NDArray[np.uint32]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which words may belong to a text needle, which to a step needle."""
        slots = _slots(words)
        return self.is_text[slots], self.is_step[slots]


def _owners(literals: list[bytes], chosen: list[int]) -> Owners:
    rows = []
    for number, (literal, at) in enumerate(zip(literals, chosen, strict=True)):
        for offset in range(at, at + 4):
            ahead, back = len(literal) - 4 - offset, offset
            away = ahead if ahead >= back else -back  # the farthest: neighbouring letters go together in other words
            first, second = literal[offset : offset + 4], literal[offset + away : offset + away + 4]
            rows.append((int.from_bytes(first, "little"), number, offset, int.from_bytes(second, "little"), away))
    rows.sort()
    columns = list(zip(*rows, strict=True)) or [(), (), (), (), ()]
    words = np.array(columns[0], np.uint32)
    return Owners(
        words,
        np.array(columns[1], np.int64),
        np.array(columns[2], np.int64),
        np.array(columns[3], np.uint32),
        np.array(columns[4], np.int64),
        np.searchsorted(words, words, side="right") - np.searchsorted(words, words, side="left"),
    )


class _Windows:
    """Every place in every needle where seven bytes could be used, four words each."""

    def __init__(self, literals: list[bytes]) -> None:
        words: list[list[int]] = []
        self._first: list[int] = []
        for literal in literals:
            self._first.append(len(words))
            folded = [int.from_bytes(literal[o : o + 4], "little") for o in range(len(literal) - 3)]
            words += [folded[at : at + 4] for at in range(len(literal) - SHORTEST + 1)]
        self._slots = _slots(np.array(words, np.uint32)) if words else np.zeros((0, 4), np.int64)
        self._ends = [*self._first[1:], len(words)]

    def choose(self, counts: Ints | None) -> list[int]:
        """For each needle where its rarest window begins; without counts the first will do."""
        if counts is None:
            return [0] * len(self._first)
        cost = counts[self._slots].sum(axis=1)
        return [int(np.argmin(cost[a:b])) for a, b in zip(self._first, self._ends, strict=True)]


def _slots(words: NDArray[np.uint32]) -> Ints:
    return ((words * np.uint32(PRIME)) >> np.uint32(32 - BITS)).astype(np.int64)


def _word_counts(sample: Bytes) -> Ints:
    counts = np.zeros(1 << BITS, np.int64)
    for shift in range(4):
        words = sample[shift : shift + (len(sample) - shift) // 4 * 4].copy().view(np.uint32)
        counts += np.bincount(_slots(words | np.uint32(FOLD)), minlength=1 << BITS)
    return counts
