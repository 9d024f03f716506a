"""The numbers of a matrix answer read by machine code, where numba is installed: ten times the speed of a JSON parser.

Nothing here is trusted: what is not plainly a list of times and values is left to the parser (-1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int64, njit, types, uint64

from trackwalker.telemetry.compiled import inside

_MARK = np.frombuffer(b'"values":[[', np.uint8)
_MOST = 22
_TENS = np.array([float(10**power) for power in range(_MOST + 1)])  # all exact
_DIGITS = 19  # that fit into 64 bits
_EXACT = 1 << 53


def _divided_(number: Any, power: Any) -> Any:
    """A whole number of 64 bits by a power of ten, as near as one division and its rest get: to the last bit."""
    tens = _TENS[power]
    high = float64(number)
    if number < uint64(_EXACT):
        return high / tens
    low = float64(int64(number - uint64(high)))
    about = high / tens
    product = about * tens
    # What the product lost by rounding, from halves of 26 bits (Dekker).
    a, b = about * 134217729.0, tens * 134217729.0
    a, b = a - (a - about), b - (b - tens)
    c, d = about - a, tens - b
    lost = ((a * b - product) + a * d + c * b) + c * d
    return about + (((high - product) - lost) + low) / tens


_divided = inside(_divided_)


def _number_(data: Any, at: Any) -> Any:
    """The number that begins here and where it ends; -1 where it is none that is read here. Data end with no digit."""
    negative = data[at] == 45
    if negative or data[at] == 43:
        at += 1
    begin, point, number, digit = at, -1, uint64(0), uint64(data[at]) - uint64(48)
    while digit <= uint64(9):
        number = number * uint64(10) + digit
        at += 1
        digit = uint64(data[at]) - uint64(48)
    told = at - begin  # digits
    if told == 0:
        if data[at] == 73:  # Inf
            return (-np.inf if negative else np.inf), at + 3
        return np.nan, at + 3 if data[at] == 78 else -1
    power = 0
    if data[at] == 46:
        at += 1
        point = at
        while number == uint64(0) and data[at] == 48:
            at += 1
        told = at if number == uint64(0) else point - told
        digit = uint64(data[at]) - uint64(48)
        while digit <= uint64(9):
            number = number * uint64(10) + digit
            at += 1
            digit = uint64(data[at]) - uint64(48)
        told, power = at - told, at - point
    # Neither Prometheus nor VictoriaMetrics writes exponents.
    if told > _DIGITS or power > 2 * _MOST:
        return 0.0, -1
    value = float64(number) if power == 0 else _divided(number, min(power, _MOST))
    if power > _MOST:
        value /= _TENS[power - _MOST]
    return (-value if negative else value), at


_number = inside(_number_)


def _read(data: Any, times: Any, values: Any, marks: Any, ends: Any) -> Any:
    """The samples of all series, where each series' list begins, how many samples there are up to its end."""
    size, at, used, series = len(data), 0, 0, 0
    if size == 0 or data[size - 1] != 125:  # }
        return -1
    while at + len(_MARK) <= size:
        same = True
        for i in range(len(_MARK)):
            if data[at + i] != _MARK[i]:
                same = False
                break
        if not same:
            at += 1
            continue
        if series == len(marks):
            return -1
        marks[series] = at
        at += len(_MARK)
        while True:
            if used == len(times):
                return -1
            times[used], at = _number(data, at)
            if at < 0 or at + 3 > size or data[at] != 44 or data[at + 1] != 34:  # ,"
                return -1
            values[used], at = _number(data, at + 2)
            if at < 0 or at + 3 > size or data[at] != 34 or data[at + 1] != 93:  # "]
                return -1
            used += 1
            at += 2
            if data[at] == 93:  # ]
                break
            if at + 3 > size or data[at] != 44 or data[at + 1] != 91:  # ,[
                return -1
            at += 2
        ends[series] = used
        series += 1
    return series


_text = types.Array(types.uint8, 1, "C", readonly=True)
_floats, _ints = float64[::1], int64[::1]
read = njit([int64(_text, _floats, _floats, _ints, _ints)], nogil=True, cache=True)(_read)
