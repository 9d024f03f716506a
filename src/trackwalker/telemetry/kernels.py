"""What is read and written by machine code, where numba is installed: a matrix answer's numbers, samples as chunks.

`read` takes the numbers of an answer at ten times the speed of a JSON parser; nothing there is trusted: what is not
plainly a list of times and values is left to the parser (-1). `encode` writes the chunks of a block (see xor.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float64, int64, njit, types, uint8, uint64

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


LONGEST_HEAD = 32  # bytes: number of samples, first time, first value, first difference
LONGEST_SAMPLE = 19  # bytes: 68 bits of time, 77 of value


def _byte_(out: Any, at: Any, number: Any) -> Any:
    """An unsigned number, seven bits a byte."""
    while number >= uint64(0x80):
        out[at] = uint8((number & uint64(0x7F)) | uint64(0x80))
        number >>= uint64(7)
        at += 1
    out[at] = uint8(number)
    return at + 1


def _bits_(out: Any, at: Any, held: Any, fill: Any, number: Any, width: Any) -> Any:
    """At most 32 bits more: whole bytes are written, the rest is held."""
    held = (held << width) | number
    fill += width
    while fill >= uint64(8):
        fill -= uint64(8)
        out[at] = uint8((held >> fill) & uint64(0xFF))
        at += 1
    return at, held & ((uint64(1) << fill) - uint64(1)), fill


_byte, _bits = inside(_byte_), inside(_bits_)


def _long_(out: Any, at: Any, held: Any, fill: Any, number: Any, width: Any) -> Any:
    """At most 64 bits more."""
    if width > uint64(32):
        at, held, fill = _bits(out, at, held, fill, number >> uint64(32), width - uint64(32))
        number, width = number & uint64(0xFFFFFFFF), uint64(32)
    return _bits(out, at, held, fill, number, width)


_long = njit(nogil=True, cache=True)(_long_)


def _trailing_(word: Any) -> Any:
    """How many zeros a word ends with that is not zero."""
    count, step = uint64(0), uint64(32)
    while step > uint64(0):
        if word & ((uint64(1) << step) - uint64(1)) == uint64(0):
            word >>= step
            count += step
        step >>= uint64(1)
    return count


def _leading_(word: Any) -> Any:
    """How many zeros a word begins with that is not zero; of more than 31 the format tells 31."""
    count, step = uint64(0), uint64(16)
    while step > uint64(0):
        if word >> (uint64(64) - step) == uint64(0):
            word <<= step
            count += step
        step >>= uint64(1)
    return count


_trailing, _leading = inside(_trailing_), inside(_leading_)


def _encode(times: Any, bits: Any, out: Any, ends: Any) -> None:
    """Each row as a chunk, one behind the other, and where each ends."""
    rows, count = bits.shape
    at = 0
    for r in range(rows):
        out[at], out[at + 1] = uint8(count >> 8), uint8(count & 255)
        first, before = times[r, 0], bits[r, 0]
        at = _byte(out, at + 2, uint64(first << 1) if first >= 0 else uint64((-first << 1) - 1))
        for shift in range(56, -8, -8):
            out[at] = uint8((before >> uint64(shift)) & uint64(0xFF))
            at += 1
        held, fill, leading, trailing, known = uint64(0), uint64(0), uint64(0), uint64(0), False
        delta = int64(0)
        if count > 1:
            delta = times[r, 1] - first
            at = _byte(out, at, uint64(delta))
        for k in range(1, count):
            if k > 1:
                by = times[r, k] - times[r, k - 1] - delta
                delta += by
                if by == 0:
                    at, held, fill = _bits(out, at, held, fill, uint64(0), uint64(1))
                elif -8191 <= by <= 8192:
                    at, held, fill = _bits(out, at, held, fill, uint64(0b10 << 14) | uint64(by & 0x3FFF), uint64(16))
                elif -65535 <= by <= 65536:
                    at, held, fill = _bits(out, at, held, fill, uint64(0b110 << 17) | uint64(by & 0x1FFFF), uint64(20))
                elif -524287 <= by <= 524288:
                    at, held, fill = _bits(out, at, held, fill, uint64(0b1110 << 20) | uint64(by & 0xFFFFF), uint64(24))
                else:
                    at, held, fill = _bits(out, at, held, fill, uint64(0b1111), uint64(4))
                    at, held, fill = _long(out, at, held, fill, uint64(by), uint64(64))
            change = bits[r, k] ^ bits[r, k - 1]
            if change == uint64(0):
                at, held, fill = _bits(out, at, held, fill, uint64(0), uint64(1))
                continue
            front, back = _leading(change), _trailing(change)
            if known and front >= leading and back >= trailing:
                at, held, fill = _bits(out, at, held, fill, uint64(0b10), uint64(2))
            else:
                leading, trailing, known = front, back, True
                wide = (uint64(64) - leading - trailing) & uint64(63)  # 64 is written as 0
                told = (uint64(0b11 << 11)) | (leading << uint64(6)) | wide
                at, held, fill = _bits(out, at, held, fill, told, uint64(13))
            at, held, fill = _long(out, at, held, fill, change >> trailing, uint64(64) - leading - trailing)
        if fill > uint64(0):
            at, held, fill = _bits(out, at, held, fill, uint64(0), uint64(8) - fill)
        ends[r] = at


encode = njit(["void(int64[:, ::1], uint64[:, ::1], uint8[::1], int64[::1])"], nogil=True, cache=True)(_encode)
