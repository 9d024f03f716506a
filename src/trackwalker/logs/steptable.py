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

from trackwalker.logs.lines import payload_start

Floats = NDArray[np.float64]
Letters = NDArray[np.uint8]

NEEDLE = b"completed step:"
# The form nearly every line of a long MaxText log has: step, seconds, tokens per second, loss.
_FULL_FORM = re.compile(
    NEEDLE + rb" *(\d{1,15}), seconds: *(\d{1,9}\.\d{1,9}), TFLOP/s/device: *[\d.]+(?:, MFU: *[\d.]+%)?"
    rb", Tokens/s/device: *(\d{1,12}\.\d{1,9}), total_weights: *\d+, loss: *(\d{1,9}\.\d{1,9})\r?(?=\n|$)"
)
_ZERO = np.uint8(ord("0"))
_FEW = 8  # lines of one form: fewer are read one by one
_EXACT = 15  # digits that a double holds


def read_table(lines: list[bytes]) -> Floats | None:
    """Step, seconds, tokens per second and loss of each line; None when a line has not MaxText's full form."""
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    width = int(lengths.max(initial=1))
    letters = np.frombuffer(b"".join([raw.ljust(width) for raw in lines]), np.uint8)
    return read_rows(letters.reshape(-1, width), lengths)


def read_rows(letters: Letters, lengths: NDArray[np.int64]) -> Floats | None:
    """The same of lines that are rows of letters already, with anything behind their ends."""
    if len(letters) >= _FEW and lengths[0] == lengths.min() == lengths.max() and _alike(letters[:, : lengths[0]]):
        return _numbers(letters[:, : lengths[0]])
    out = np.empty((len(letters), 4))
    for length in sorted(set(lengths.tolist())):
        rows = np.flatnonzero(lengths == length)
        same = letters[rows, :length] if len(rows) < len(letters) else letters[:, :length]
        for alike in _by_form(same * (same - _ZERO > 9)):  # every digit a zero byte
            numbers = _numbers(same[alike])
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

    spans: list[tuple[int, int]]
    columns: list[int]
    weights: Floats
    parts: list[slice]  # of the columns, one for each number
    divisors: Floats
    exact: bool  # all fit a double


@lru_cache(64)
def _layout(form: bytes) -> _Layout | None:
    """The layout of lines whose digits are all zeros here; None when they have not MaxText's full form."""
    match = _FULL_FORM.search(form)
    if match is None or payload_start(form[: match.start()].decode("utf-8", "replace")) is not None:
        return None
    spans = [match.span(group) for group in (1, 2, 3, 4)]
    digits = [[at for at in range(*span) if form[at] != ord(".")] for span in spans]
    firsts = [0, *np.cumsum([len(d) for d in digits]).tolist()]
    behind = [text[::-1].find(b".") if b"." in text else 0 for text in match.groups()]
    return _Layout(
        spans,
        [at for places in digits for at in places],
        np.array([[10.0**power] for places in digits for power in range(len(places) - 1, -1, -1)]),
        [slice(begin, end) for begin, end in pairwise(firsts)],
        10.0 ** np.array(behind),
        max(end - begin for begin, end in spans) <= _EXACT,
    )


def _numbers(letters: Letters) -> Floats | None:
    """The four numbers of lines that are alike; None when they have not MaxText's full form.

    Each is a whole number divided once, which rounds as reading the text would.
    """
    first = letters[0]
    layout = _layout(np.where(first - _ZERO <= 9, _ZERO, first).tobytes())
    if layout is None:
        return None
    if len(letters) < _FEW or not layout.exact:
        return np.array([[float(raw[begin:end]) for begin, end in layout.spans] for raw in map(bytes, letters)])
    # No matrix product: its library starts threads of its own, and they would fight ours for the processors.
    worth = (letters.T[layout.columns] - _ZERO) * layout.weights
    return np.stack([worth[part].sum(axis=0) for part in layout.parts], axis=1) / layout.divisors
