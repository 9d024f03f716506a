"""Chunks: what the fast encoder writes is what a plain decoder reads."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from xor_decoder import Bits, decode

from trackwalker.telemetry.xor import encode_chunks, uvarint, varint

FLOATS = st.one_of(
    st.floats(),
    st.integers(-(2**53), 2**53).map(float),
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), 5e-324]),
)
GAPS = st.one_of(st.integers(1, 20_000), st.integers(1, 2**40), st.just(15_000))


def bits_of(values: list[float]) -> list[bytes]:
    return [struct.pack(">d", v) for v in values]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 4), st.integers(-(2**41), 2**41))
def test_every_row_comes_back_bit_by_bit(data: st.DataObject, count: int, rows: int, start: int) -> None:
    times = []
    for _ in range(rows):
        gaps = data.draw(st.lists(GAPS, min_size=count - 1, max_size=count - 1))
        times.append(np.cumsum([start, *gaps]))
    values = [data.draw(st.lists(FLOATS, min_size=count, max_size=count)) for _ in range(rows)]
    chunks = encode_chunks(np.array(times, np.int64), np.array(values))
    assert len(chunks) == rows
    for row, chunk in enumerate(chunks):
        samples = decode(chunk)
        assert [t for t, _ in samples] == times[row].tolist()
        assert bits_of([v for _, v in samples]) == bits_of(values[row])


def test_borders_of_the_classes_of_time_differences() -> None:
    gaps = [15_000]
    for border in (0, 8191, 8192, 8193, 65_535, 65_536, 65_537, 524_287, 524_288, 524_289):
        gaps += [15_000 + border, 15_000, 600_000, 600_000 - border]
    times = np.cumsum([1_772_000_000_000, *gaps])
    (chunk,) = encode_chunks(times[None, :], np.arange(len(times), dtype=float)[None, :])
    assert [t for t, _ in decode(chunk)] == times.tolist()


def test_many_rows_are_the_same_as_one_after_the_other() -> None:
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.integers(1, 20_000, (60, 120)), axis=1)
    values = np.round(rng.normal(900, 12, (60, 120)))
    together = encode_chunks(times, values)
    assert together == [encode_chunks(times[r : r + 1], values[r : r + 1])[0] for r in range(60)]


@given(st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_numbers_of_any_length(unsigned: int, signed: int) -> None:
    assert Bits(uvarint(unsigned)).uvarint() == unsigned
    assert Bits(varint(signed)).varint() == signed
