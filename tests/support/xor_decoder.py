"""Prometheus' XOR chunks read bit by bit, as the format is written down: slow, plain, and not our encoder's code."""

from __future__ import annotations

import struct


class Bits:
    """A byte string as a stream of bits, most significant first."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> int:
        number = 0
        for _ in range(count):
            number = number << 1 | (self._data[self._at >> 3] >> (7 - (self._at & 7)) & 1)
            self._at += 1
        return number

    def uvarint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(8)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def varint(self) -> int:
        number = self.uvarint()
        return (number >> 1) ^ -(number & 1)


def decode(chunk: bytes) -> list[tuple[int, float]]:
    """The samples of one chunk: (time in milliseconds, value)."""
    bits = Bits(chunk)
    count = bits.take(16)
    time, word = bits.varint(), bits.take(64)
    out = [(time, _float(word))]
    delta = leading = trailing = 0
    for at in range(1, count):
        delta = bits.uvarint() if at == 1 else delta + _second_difference(bits)
        time += delta
        if bits.take(1):
            if bits.take(1):
                leading, significant = bits.take(5), bits.take(6) or 64
                trailing = 64 - leading - significant
            word ^= bits.take(64 - leading - trailing) << trailing
        out.append((time, _float(word)))
    return out


def _second_difference(bits: Bits) -> int:
    for width in (0, 14, 17, 20):
        if not bits.take(1):
            if not width:
                return 0
            number = bits.take(width)
            return number - (1 << width) if number > 1 << (width - 1) else number
    number = bits.take(64)
    return number - (1 << 64) if number >> 63 else number


def _float(word: int) -> float:
    return float(struct.unpack(">d", struct.pack(">Q", word))[0])
