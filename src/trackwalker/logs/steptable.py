"""Many step lines at once: where all lines have one form, their digits stand in the same columns of a table of letters.

A long run has hundreds of thousands of them; reading each with an expression would take longer than finding them.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# The form nearly every line of a long MaxText log has: step, seconds, tokens per second, loss.
_FULL_FORM = re.compile(
    rb"completed step: *(\d{1,15}), seconds: *(\d{1,9}\.\d{1,9}), TFLOP/s/device: *[\d.]+(?:, MFU: *[\d.]+%)?"
    rb", Tokens/s/device: *(\d{1,12}\.\d{1,9}), total_weights: *\d+, loss: *(\d{1,9}\.\d{1,9})\r?(?=\n|$)"
)
_FORM = bytes.maketrans(b"123456789", b"0" * 9)
_FEW = 8  # lines of one form: fewer are read one by one
_EXACT = 15  # digits that a double holds


def read_table(lines: list[bytes]) -> Floats | None:
    """Step, seconds, tokens per second and loss of each line; None when a line has not MaxText's full form."""
    out = np.empty((len(lines), 4))
    by_form: dict[bytes, list[int]] = {}
    for row, raw in enumerate(lines):
        by_form.setdefault(raw.translate(_FORM), []).append(row)
    for rows in by_form.values():
        match = _FULL_FORM.search(lines[rows[0]])
        if match is None:
            return None
        spans = [match.span(group) for group in (1, 2, 3, 4)]
        if len(rows) < _FEW or max(b - a for a, b in spans) > _EXACT:
            for row in rows:
                out[row] = [float(lines[row][a:b]) for a, b in spans]
            continue
        table = np.frombuffer(b"".join([lines[row] for row in rows]), np.uint8).reshape(len(rows), -1)
        for column, (begin, end) in enumerate(spans):
            out[rows, column] = _numbers(table[:, begin:end], match[column + 1].find(b"."))
    return out


def _numbers(letters: NDArray[np.uint8], dot: int) -> Floats:
    """What the digits of each row say: a whole number divided once, which rounds as reading the text would."""
    places = [i for i in range(letters.shape[1]) if i != dot]
    behind = letters.shape[1] - 1 - dot if dot >= 0 else 0
    digits = letters[:, places] - np.uint8(ord("0"))
    return np.asarray(digits @ 10.0 ** np.arange(len(places) - 1, -1, -1) / 10.0**behind)
