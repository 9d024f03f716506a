"""Many step lines at once: where all lines have one form, their digits stand in the same columns of a table of letters.

A long run has hundreds of thousands of them; reading each with an expression would take longer than finding them.
"""

from __future__ import annotations

import re
from itertools import chain

import numpy as np
from numpy.typing import NDArray

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
    out = np.empty((len(letters), 4))
    for length in sorted(set(lengths.tolist())):
        rows = np.flatnonzero(lengths == length)
        same = letters[rows, :length] if len(rows) < len(letters) else letters[:, :length]
        for alike in _by_form(same * (same - _ZERO > 9)):  # every digit a zero byte
            match = _FULL_FORM.search(same[alike][0].tobytes())
            if match is None:
                return None
            out[rows[alike]] = _numbers(same[alike], match)
    return out


def _by_form(form: Letters) -> list[slice] | list[list[int]]:
    """The rows that are alike; nearly always all of them."""
    if (form == form[0]).all():
        return [slice(None)]
    found: dict[bytes, list[int]] = {}
    for row, letters in enumerate(form):
        found.setdefault(letters.tobytes(), []).append(row)
    return list(found.values())


def _numbers(letters: Letters, match: re.Match[bytes]) -> Floats:
    """The four numbers of lines that have the form of the one that matched.

    Each is a whole number divided once, which rounds as reading the text would.
    """
    spans = [match.span(group) for group in (1, 2, 3, 4)]
    if len(letters) < _FEW or max(end - begin for begin, end in spans) > _EXACT:
        return np.array([[float(raw[begin:end]) for begin, end in spans] for raw in map(bytes, letters)])
    digits = [[at for at in range(*span) if match.string[at] != ord(".")] for span in spans]
    weights = [10.0**power for places in digits for power in range(len(places) - 1, -1, -1)]
    behind = [text[::-1].find(b".") if b"." in text else 0 for text in match.groups()]
    # No matrix product: its library starts threads of its own, and they would fight ours for the processors.
    whole = np.multiply(letters[:, list(chain(*digits))] - _ZERO, weights)
    firsts = np.cumsum([0, *map(len, digits[:-1])])
    return np.asarray(np.add.reduceat(whole, firsts, axis=1) / 10.0 ** np.array(behind))
