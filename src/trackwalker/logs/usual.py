"""The lines that a long run's log mostly consists of: finished steps in their usual form. They hold no needle.

A line counts as usual when it begins as a step line does, ends with a printed loss, and is no longer than the step
lines at the beginning of the log. A line that broke off, that another text follows or precedes, or that a whole message
was written into is another line and is searched; only a word inserted into the middle of a step line would be missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trackwalker.logs.needles import Finder, Hits, Ints
from trackwalker.logs.steptable import NEEDLE

_WORD = 8
_HEAD = np.frombuffer(NEEDLE[:_WORD], np.uint64)[0]
_TAIL = np.frombuffer(b", loss: ", np.uint64)[0]
_VALUES = (-5, -6)  # before the line's end begins the printed loss; the shortest needle would not fit there
_GROWTH = 8  # letters that numbers may gain: step 9 to step 100000, 9.9 s to 10.1 s
_FORMS = 4
_WORTH = 0.6  # where more than this share of the bytes is left, taking the lines out costs more than it saves


class _Spans(NamedTuple):
    begins: Ints
    ends: Ints


@dataclass(frozen=True)
class Usual:
    """Where in a usual line the trainer's words begin (labels may grow with the rank), and how long it may be."""

    offsets: tuple[int, ...]
    longest: int

    @classmethod
    def learn(cls, lines: Sequence[bytes]) -> Usual | None:
        """From step lines at the beginning of a log; None when they have no common form."""
        offsets = {line.find(NEEDLE) for line in lines}
        if -1 in offsets or not 0 < len(offsets) <= _FORMS:
            return None
        return cls(tuple(sorted(offsets)), max(map(len, lines)) + _GROWTH)

    def find(self, finder: Finder, data: NDArray[np.uint8], spare: NDArray[np.uint8], newlines: Ints) -> Hits:
        """What the finder finds in the data outside its usual lines; `spare` is the data with a word more behind it."""
        spans = self._others(spare, newlines, len(data))
        sizes = spans.ends - spans.begins
        if sizes.sum() > _WORTH * len(data):
            return finder.find(data.data)
        view = data.data
        rest = b"".join([view[a:b] for a, b in zip(spans.begins.tolist(), spans.ends.tolist(), strict=True)])
        hits = finder.find(memoryview(rest))
        shifts = spans.begins - (np.cumsum(sizes) - sizes)
        span = np.searchsorted(np.cumsum(sizes), hits.places, side="right")
        return Hits(hits.places + shifts[span], hits.texts, hits.dropped)

    def _others(self, spare: NDArray[np.uint8], newlines: Ints, size: int) -> _Spans:
        """Everything but the usual lines, as few spans as possible; each ends behind a newline or with the data."""
        starts, ends = newlines[:-1] + 1, newlines[1:]
        words = np.ndarray((len(spare) - _WORD + 1,), np.uint64, spare.data, strides=(1,))
        lengths = ends - starts
        fits = np.flatnonzero((lengths <= self.longest) & (lengths >= self.offsets[-1] + 3 * _WORD))
        fits = fits[_any(words, starts[fits], self.offsets, _HEAD)]
        fits = fits[_any(words, ends[fits] - _WORD, _VALUES, _TAIL)]
        is_usual = np.zeros(len(starts), np.bool_)
        is_usual[fits] = True
        edges = np.flatnonzero(np.diff(is_usual, prepend=False, append=False))
        return _Spans(np.append(0, ends[edges[1::2] - 1] + 1), np.append(starts[edges[::2]], size))


def _any(words: NDArray[np.uint64], places: Ints, shifts: Sequence[int], wanted: np.uint64) -> NDArray[np.bool_]:
    """Whether the word stands at one of these distances from each place."""
    found: NDArray[np.bool_] = words[places + shifts[0]] == wanted
    for shift in shifts[1:]:
        missing = np.flatnonzero(~found)
        found[missing] = words[places[missing] + shift] == wanted
    return found
