"""The wire format in columns gives what a plain walk over the bytes gives."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackwalker.errors import EvidenceError
from trackwalker.perf.formats import wire
from trackwalker.perf.ranks.perfetto import block, number, varint

numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))


def padded(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw + bytes(wire.PAD), np.uint8).copy()


@settings(max_examples=40, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=30))
def test_varints_of_every_length_are_read_at_once(values) -> None:
    pieces = [varint(value) for value in values]
    at = np.cumsum([0, *map(len, pieces)])[:-1]
    found, sizes = wire.varints(padded(b"".join(pieces)), at)
    assert [n % 2**64 for n in found.tolist()] == values
    assert sizes.tolist() == list(map(len, pieces))


def test_fields_of_every_wire_type_come_back() -> None:
    raw = number(1, 300) + block(2, "text") + b"\x19" + bytes(7) + b"\x40" + b"\x25\x01\x00\x00\x00" + number(600, 7)
    found = list(wire.fields(memoryview(raw)))
    assert [key for key, _ in found] == [1, 2, 3, 4, 600]
    assert found[0][1] == 300
    assert wire.text(found[1][1]) == "text"
    assert wire.double(found[2][1]) == 2.0
    assert (found[3][1], found[4][1]) == (1, 7)
    assert wire.signed(2**64 - 5) == -5
    assert wire.packed(memoryview(varint(5) + varint(300))) == [5, 300]


def test_a_message_that_ends_too_early_says_so() -> None:
    for raw in (block(1, "whole")[:-1], b"\x0a", b"\x08\xff", b"\x0b", b"\xff" * 11):
        with pytest.raises(wire.CutError):
            list(wire.fields(memoryview(raw)))


def naive(raw: bytes, tag: int) -> tuple[list[tuple[int, int]], int]:
    found, at = [], 0
    while at < len(raw) and raw[at] == tag:
        try:
            size, body = wire.varint(memoryview(raw), at + 1, len(raw))
        except wire.CutError:
            break
        if body + size > len(raw):
            break
        found.append((body, body + size))
        at = body + size
    return found, at


@pytest.mark.parametrize("seed", range(6))
def test_a_long_chain_of_nested_messages_is_split_where_a_plain_walk_splits_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # As events are: fields, then stats with the same tag as the event itself; 0x22 also turns up inside values.
    stat = [block(4, number(1, int(k)) + number(3, int(v))) for k, v in rng.integers(1, 2**20, (40, 2))]
    events = []
    while sum(map(len, events)) < 60_000:
        head = number(1, int(rng.integers(1, 300))) + number(2, int(rng.integers(0, 2**40))) + number(3, 0x2222)
        count = int(rng.integers(0, 9)) if rng.random() < 0.99 else 400
        events.append(block(4, head + b"".join(stat[i] for i in rng.integers(0, len(stat), count))))
    raw = b"".join(events)
    for ending in (b"", number(9, 5) + block(11, "a name"), block(4, bytes(90))[:50], b"\x22"):
        starts, ends, stop = wire.chain(padded(raw + ending), 0, len(raw + ending), 0x22)
        assert (list(zip(starts.tolist(), ends.tolist(), strict=True)), stop) == naive(raw + ending, 0x22)


def test_messages_longer_than_two_bytes_of_length_are_split_too() -> None:
    raw = b"".join(block(4, bytes(size)) for size in [20_000, 5, 40_000, 7] + [90] * 500)
    starts, ends, stop = wire.chain(padded(raw), 0, len(raw), 0x22)
    found = list(zip(starts.tolist(), ends.tolist(), strict=True))
    while stop < len(raw):  # the caller goes on where it stopped
        starts, ends, stop = wire.chain(padded(raw), stop, len(raw), 0x22)
        found += list(zip(starts.tolist(), ends.tolist(), strict=True))
    assert found == naive(raw, 0x22)[0]


def test_bytes_without_any_message_give_none() -> None:
    noise = np.random.default_rng(1).integers(0, 256, 50_000, dtype=np.uint8).tobytes()
    assert wire.chain(padded(b"\x08" + noise), 0, 50_001, 0x22)[2] == 0


def test_gzip_is_unpacked_and_a_cut_one_gives_what_it_has(tmp_path: Path) -> None:
    raw = np.random.default_rng(2).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
    whole, cut = tmp_path / "a.gz", tmp_path / "b.gz"
    whole.write_bytes(gzip.compress(raw))
    cut.write_bytes(gzip.compress(raw)[:200_000])
    assert bytes(wire.Source(whole).view) == raw
    source = wire.Source(cut)
    assert len(source) > 100_000
    assert raw.startswith(bytes(source.view))
    assert "cut or damaged" in source.gaps[0].why


def test_an_empty_file_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(EvidenceError, match="the trace is empty"):
        wire.Source(tmp_path / "x")


def test_released_pages_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(256)) * 256)
    source = wire.Source(tmp_path / "x")
    source.release(100, 60_000)
    assert bytes(source.view[:512]) == bytes(range(256)) * 2


def test_a_number_of_ten_bytes_counts_as_far_as_64_bits_go() -> None:
    """What a fuzzer found: the tenth byte can hold seven bits, of which one has room."""
    raw = np.frombuffer(b"\xff" * 9 + b"\x7f" + bytes(wire.PAD), np.uint8)
    values, sizes = wire.varints(raw, np.array([0]))
    assert (values.tolist(), sizes.tolist()) == ([-1], [10])
    assert wire.signed((1 << 70) - 1) == -1
