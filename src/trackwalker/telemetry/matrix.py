"""A matrix answer without an object for each of a million samples."""

from __future__ import annotations

import contextlib
import importlib
import sys
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import orjson

Floats = npt.NDArray[np.float64]
Labels = dict[str, str]

_MATRIX = b'{"status":"success","data":{"resultType":"matrix","result":[{'
_METRIC, _VALUES = b'{"metric":', b'"values":[['
_SHORTEST, _SHORTEST_SERIES = 8, 32  # bytes of a sample, of a series
_KERNEL = "trackwalker.telemetry.kernels"


def read_matrix(content: bytes) -> list[tuple[Labels, Floats, Floats]] | None:
    """Labels, times and values of every series; None when it is anything else than a matrix answer.

    Inside a label's value a quotation mark is escaped, so the words that are looked for here stand nowhere else.
    """
    if not content.startswith(_MATRIX):
        return None
    if _KERNEL in sys.modules and (found := _by_compiler(content)) is not None:
        return found
    out = []
    parts = content.split(_VALUES)
    for before, after in pairwise(parts):
        numbers = _numbers(after[: after.index(b"]]")].translate(None, b'[]"'))
        if len(numbers) % 2:
            return None
        out.append((_labels(before, 0, len(before)), numbers[0::2], numbers[1::2]))
    return out


def read_quickly() -> None:
    """From here on read by machine code, where numba is installed; its import takes half a second."""
    with contextlib.suppress(Exception):  # not installed, no folder to keep the result in: the parser can do it too
        importlib.import_module(_KERNEL)


def _by_compiler(content: bytes) -> list[tuple[Labels, Floats, Floats]] | None:
    from trackwalker.telemetry import kernels as kernel

    most, series = len(content) // _SHORTEST + 1, len(content) // _SHORTEST_SERIES + 1
    times, values = np.empty(most), np.empty(most)  # of what is not written to there is no memory
    marks, ends = np.empty(series, np.int64), np.empty(series, np.int64)
    series = kernel.read(np.frombuffer(content, np.uint8), times, values, marks, ends)
    if series <= 0:
        return None
    out, begin, at = [], 0, 0
    for mark, end in zip(marks[:series].tolist(), ends[:series].tolist(), strict=True):
        out.append((_labels(content, at, mark), times[begin:end], values[begin:end]))
        begin, at = end, mark
    return out


def _labels(content: bytes, begin: int, mark: int) -> Labels:
    """The labels that stand before a series' values, behind the values of another."""
    found: Labels = orjson.loads(content[content.rindex(_METRIC, begin, mark) + len(_METRIC) : mark - 1])
    return found


def _numbers(text: bytes) -> Floats:
    try:
        numbers = orjson.loads(b"[%b]" % text)
    except orjson.JSONDecodeError:  # NaN and Inf are no JSON; this reads them, and takes half as long again
        return np.fromstring(text.decode(), dtype=np.float64, sep=",")
    return np.fromiter(numbers, np.float64, len(numbers))
