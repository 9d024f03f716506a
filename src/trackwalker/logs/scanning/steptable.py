"""Many step lines at once: where all lines have one form, their digits stand in the same columns of a table of letters.

A long run has hundreds of thousands of them; reading each with an expression would take longer than finding them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

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


def read_table(lines: list[bytes], dialect: Dialect) -> Floats | None:
    """Step, seconds, tokens per second and loss of each line, NaN where it tells none; None when a line is odd."""
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    width = int(lengths.max(initial=1))
    letters = np.frombuffer(b"".join([raw.ljust(width) for raw in lines]), np.uint8)
    return read_rows(letters.reshape(-1, width), lengths, dialect)


def read_rows(letters: Letters, lengths: NDArray[np.int64], dialect: Dialect) -> Floats | None:
    """The same of lines that are rows of letters already, with anything behind their ends."""
    if len(letters) >= _FEW and lengths[0] == lengths.min() == lengths.max() and _alike(letters[:, : lengths[0]]):
        return _numbers(letters[:, : lengths[0]], dialect)
    out = np.empty((len(letters), 4))
    for length in sorted(set(lengths.tolist())):
        rows = np.flatnonzero(lengths == length)
        same = letters[rows, :length] if len(rows) < len(letters) else letters[:, :length]
        for alike in _by_form(same * (same - _ZERO > 9)):  # every digit a zero byte
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
