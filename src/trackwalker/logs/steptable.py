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
_FORMS = 4  # among lines of one length; 9.99 seconds and 10.01 differ in form
_EXACT = 15  # digits that a double holds


def read_table(lines: list[bytes]) -> Floats | None:
    """Step, seconds, tokens per second and loss of each line; None when a line has not MaxText's full form."""
    out = np.empty((len(lines), 4))
    by_length: dict[int, list[int]] = {}
    for row, raw in enumerate(lines):
        by_length.setdefault(len(raw), []).append(row)
    for same_length in by_length.values():
        rows = np.array(same_length)
        table = np.frombuffer(b"".join([lines[row] for row in same_length]), np.uint8).reshape(len(rows), -1)
        for _ in range(_FORMS):
            if not len(rows):
                break
            match = _FULL_FORM.search(lines[rows[0]])
            if match is None:
                return None
            spans = [match.span(group) for group in (1, 2, 3, 4)]
            if max(b - a for a, b in spans) > _EXACT:
                break
            digits = table - np.uint8(48)  # what is no digit wraps to more than nine
            is_digit = digits < 10
            same = np.where(is_digit[0], is_digit, table == table[0]).all(axis=1)
            for column, (begin, end) in enumerate(spans):
                out[rows[same], column] = _numbers(digits[same, begin:end], match[column + 1].find(b"."))
            rows, table = rows[~same], table[~same]
        for row in rows.tolist():
            match = _FULL_FORM.search(lines[row])
            if match is None:
                return None
            out[row] = [float(number) for number in match.groups()]
    return out


def _numbers(digits: NDArray[np.uint8], dot: int) -> Floats:
    """What the digits of each row say: a whole number divided once, which rounds as reading the text would."""
    places = [i for i in range(digits.shape[1]) if i != dot]
    behind = digits.shape[1] - 1 - dot if dot >= 0 else 0
    return np.asarray(digits[:, places] @ 10.0 ** np.arange(len(places) - 1, -1, -1) / 10.0**behind)
