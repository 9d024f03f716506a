"""Many step lines at once: where all lines have one form, their digits stand in the same columns of a table of letters.

A long run has hundreds of thousands of them; reading each with an expression would take longer than finding them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trackwalker.job.dialects import Dialect
from trackwalker.job.payload import payload_start

Floats = NDArray[np.float64]
Letters = NDArray[np.uint8]

_PLAIN = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_ZERO = np.uint8(ord("0"))
_FEW = 8  # lines of one form: fewer are read one by one
_EXACT = 15  # digits that a double holds


class Columns:
    """Step, seconds, tokens per second, loss and line of many steps, in arrays that grow where they are.

    Pieces that are joined at the end would need twice the memory at once.
    """

    def __init__(self) -> None:
        self._held: list[NDArray[Any]] = [np.empty(0, kind) for kind in (np.int64, float, float, float, np.int64)]
        self._size = 0
        self._lent = False  # others look at the arrays: they may not move

    def add(self, table: Floats, lines: NDArray[np.int64]) -> None:
        """More steps, as `read_table` gives them."""
        begin, self._size = self._size, self._size + len(table)
        if self._size > len(self._held[0]):
            if self._lent:
                self._held, self._lent = [each[:begin].copy() for each in self._held], False
            for each in self._held:
                each.resize(self._size + self._size // 8, refcheck=False)
        for each, values in zip(self._held, (*table.T, lines), strict=True):
            each[begin : self._size] = values

    def all(self) -> list[NDArray[Any]]:
        """The five arrays; they stay as they are when more steps are added."""
        self._lent = True
        return [each[: self._size] for each in self._held]

    def without(self, line: int) -> None:
        """Forget what one line told."""
        keep = self._held[4][: self._size] != line
        self._held, self._lent = [each[: self._size][keep] for each in self._held], False
        self._size = len(self._held[4])


def read_table(lines: list[bytes], dialect: Dialect) -> Floats | None:
    """Step, seconds, tokens per second and loss of each line, NaN where it tells none; None when a line is odd."""
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    width = int(lengths.max(initial=1))
    letters = np.frombuffer(b"".join([raw.ljust(width) for raw in lines]), np.uint8)
    return read_rows(letters.reshape(-1, width), lengths, dialect)


def read_rows(letters: Letters, lengths: NDArray[np.int64], dialect: Dialect) -> Floats | None:
    """The same of lines that are rows of letters already, with anything behind their ends."""
    out = np.empty((len(letters), 4))
    for length in sorted(set(lengths.tolist())):
        rows = np.flatnonzero(lengths == length)
        same = (letters.take(rows, axis=0) if len(rows) < len(letters) else letters)[:, :length]
        # A number with a digit more is rare: mostly all lines of one length have one form. Every digit a zero byte.
        for alike in [slice(None)] if _alike(same) else _by_form(same * (same - _ZERO > 9)):
            numbers = _numbers(same[alike], dialect)
            if numbers is None:
                return None
            out[rows[alike]] = numbers
    return out


def _alike(letters: Letters) -> bool:
    """Whether all rows have digits where the first has, and the same letters elsewhere."""
    low, high = letters.min(axis=0), letters.max(axis=0)
    digits = letters[0] - _ZERO <= 9
    return bool(np.where(digits, (low - _ZERO <= 9) & (high - _ZERO <= 9), low == high).all())


def _by_form(form: Letters) -> list[list[int]]:
    """The rows that are alike."""
    found: dict[bytes, list[int]] = {}
    for row, letters in enumerate(form):
        found.setdefault(letters.tobytes(), []).append(row)
    return list(found.values())


class _Layout(NamedTuple):
    """Where the four numbers of a form stand, and what each of their digits is worth."""

    spans: list[tuple[int, int] | None]  # of step, seconds, tokens per second, loss
    columns: list[int]
    weights: Floats
    parts: list[slice | None]  # of the columns, one for each number
    divisors: Floats
    units: Floats  # what each is divided by beyond its digits behind the point
    inverse: bool  # what it tells is not the seconds of a step but the steps of a second
    exact: bool  # all fit a double


@lru_cache(64)
def _layout(form: bytes, dialect: Dialect) -> _Layout | None:
    """The layout of lines whose digits are all zeros here; None when they are not plain lines of the dialect."""
    match = dialect.expression.search(text := form.decode("latin-1"))
    if match is None or payload_start(text[: match.start()]) is not None:
        return None
    groups = match.groupdict()
    took = next((name for name in ("seconds", "ms", "rate") if groups.get(name)), "")
    names = ("step", took, "tgs", "loss")
    spans = [match.span(name) if name and groups.get(name) else None for name in names]
    if spans[0] is None or any(not _PLAIN.fullmatch(groups[n]) for n, s in zip(names, spans, strict=True) if s):
        return None
    if "loss" in groups and spans[3] is None:
        return None  # a loss that is no number, or cut: read with care
    digits = [[at for at in range(*span) if form[at] != ord(".")] if span else [] for span in spans]
    firsts = [0, *np.cumsum([len(d) for d in digits]).tolist()]
    behind = [len(groups[n].partition(".")[2]) if s else 0 for n, s in zip(names, spans, strict=True)]
    return _Layout(
        spans,
        [at for places in digits for at in places],
        np.array([[10.0**power] for places in digits for power in range(len(places) - 1, -1, -1)]),
        [slice(a, b) if span else None for (a, b), span in zip(pairwise(firsts), spans, strict=True)],
        10.0 ** np.array(behind) * (units := np.array([1.0, 1000.0 if took == "ms" else 1.0, 1.0, 1.0])),
        units,
        took == "rate",
        max(span[1] - span[0] for span in spans if span) <= _EXACT,
    )


def _numbers(letters: Letters, dialect: Dialect) -> Floats | None:
    """The four numbers of lines that are alike; None when they are not plain lines of the dialect.

    Each is a whole number divided once, which rounds as reading the text would.
    """
    first = letters[0]
    layout = _layout(np.where(first - _ZERO <= 9, _ZERO, first).tobytes(), dialect)
    if layout is None:
        return None
    out = np.full((len(letters), 4), np.nan)
    if len(letters) < _FEW or not layout.exact:
        for i, span in enumerate(layout.spans):
            if span:
                out[:, i] = np.array([float(raw[span[0] : span[1]]) for raw in map(bytes, letters)]) / layout.units[i]
        return _inverted(out) if layout.inverse else out
    # No matrix product: its library starts threads of its own, and they would fight ours for the processors.
    worth = (letters.T[layout.columns] - _ZERO) * layout.weights
    for i, part in enumerate(layout.parts):
        if part:
            out[:, i] = worth[part].sum(axis=0) / layout.divisors[i]
    return _inverted(out) if layout.inverse else out


def _inverted(table: Floats) -> Floats:
    table[:, 1] = 1.0 / np.maximum(table[:, 1], 1e-9)
    return table
