"""The write-ahead log's frames: what a killed writer leaves is normal, what a bad disk leaves is damage."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from trackwalker.telemetry.wal import PAGE, crc32c, fragments, salvage, torn_at_end

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def table() -> list[int]:
    out = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        out.append(value)
    return out


TABLE = table()


@cache
def checksum(data: bytes) -> int:
    """CRC-32C the textbook way, a byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def encode(records: list[bytes]) -> bytes:
    """Write records as Prometheus does: fragments of at most a page, pages padded with zeros."""
    out = bytearray()
    for record in records:
        left, first = record, True
        while left or first:
            room = PAGE - len(out) % PAGE
            if room <= 7:
                out += bytes(room)
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = (FULL if not left else FIRST) if first else (MIDDLE if left else LAST)
            out += bytes([kind]) + len(part).to_bytes(2, "big") + checksum(part).to_bytes(4, "big") + part
            first = False
    return bytes(out)


def decode(data: bytes) -> list[bytes]:
    """Read records back; every frame has to be right and in sequence, as Prometheus demands."""
    records, open_record = [], None
    for f in fragments(data):
        body = data[f.start + 7 : f.end]
        assert f.ok
        assert checksum(body) == int.from_bytes(data[f.start + 3 : f.start + 7], "big")
        if f.kind in (FULL, FIRST):
            assert open_record is None
            open_record = b""
        assert open_record is not None
        open_record += body
        if f.kind in (FULL, LAST):
            records.append(open_record)
            open_record = None
    assert open_record is None
    return records


@pytest.fixture
def records() -> list[bytes]:
    rng = random.Random(7)
    sizes = [rng.choice([10, 300, 4000, 40_000, 90_000]) for _ in range(60)]
    return [rng.randbytes(size) for size in sizes]


def last_page(data: bytes) -> bytes:
    return data[(len(data) - 1) // PAGE * PAGE :]


def test_the_checksum_is_castagnolis() -> None:
    text = b"x123456789" + bytes(32)
    got = crc32c(text, np.array([1, 10, 0]), np.array([9, 32, 0]))
    assert got.tolist() == [0xE3069283, 0x8A9136AA, 0]


def test_many_checksums_at_once_agree_with_the_textbook() -> None:
    rng = random.Random(5)
    data = rng.randbytes(100_000)
    starts = [rng.randrange(50_000) for _ in range(40)]
    lengths = [rng.choice([0, 1, 255, 256, 257, 512, 5000, 32_761]) for _ in range(40)]
    got = crc32c(data, np.array(starts), np.array(lengths))
    assert got.tolist() == [checksum(data[s : s + n]) for s, n in zip(starts, lengths, strict=True)]


def test_a_sound_segment_is_left_alone(tmp_path: Path, records: list[bytes]) -> None:
    path = tmp_path / "00000000"
    path.write_bytes(encode(records))
    assert decode(path.read_bytes()) == records
    assert salvage(path, newest=False) == 0
    assert path.read_bytes() == encode(records)


def test_every_cut_of_the_end_is_normal_in_the_newest_segment_and_damage_elsewhere(
    tmp_path: Path, records: list[bytes]
) -> None:
    whole = encode(records)
    path = tmp_path / "00000000"
    for cut in random.Random(1).sample(range(len(whole) - 90_000, len(whole)), 12):
        path.write_bytes(whole[:cut])
        assert torn_at_end(last_page(whole[:cut]))
        assert salvage(path, newest=True) == 0
        kept = decode(path.read_bytes())
        assert kept == records[: len(kept)]
        assert len(kept) >= len(records) - 12
        path.write_bytes(whole[:cut])
        if fragments(whole[:cut])[-1].kind in (FIRST, MIDDLE) or not fragments(whole[:cut])[-1].ok:
            assert salvage(path, newest=False) > 0


def test_a_bad_spot_costs_its_own_record_only(tmp_path: Path, records: list[bytes]) -> None:
    whole = encode(records)
    path = tmp_path / "00000000"
    for at in random.Random(2).sample(range(len(whole) // 2), 8):
        hurt = bytearray(whole)
        hurt[at] ^= 0x10
        path.write_bytes(hurt)
        lost = salvage(path, newest=True)
        kept = decode(path.read_bytes())
        # A flipped length hides the rest of its page; anything else hits one record.
        assert lost > 0
        assert len(records) - len(kept) <= 12
        assert [r for r in records if r in kept] == kept


def test_garbage_over_several_pages_is_skipped(tmp_path: Path, records: list[bytes]) -> None:
    hurt = bytearray(encode(records))
    hurt[100_000:300_000] = random.Random(3).randbytes(200_000)
    path = tmp_path / "00000000"
    path.write_bytes(hurt)
    assert salvage(path, newest=True) > 150_000
    kept = decode(path.read_bytes())
    assert kept[0] == records[0]
    assert kept[-1] == records[-1]


def test_damage_before_good_records_in_the_last_page_is_not_a_torn_end() -> None:
    page = bytearray(encode([b"a" * 500, b"b" * 500, b"c" * 500]))
    page[600] ^= 1
    assert not torn_at_end(bytes(page))
    page = bytearray(encode([b"a" * 500, b"b" * 500]))
    page[-1] ^= 1
    assert torn_at_end(bytes(page)), "half-written, with nothing behind it"


def test_nothing_but_zeros_or_nothing_at_all(tmp_path: Path) -> None:
    path = tmp_path / "00000000"
    for data in (b"", bytes(100_000)):
        path.write_bytes(data)
        assert salvage(path, newest=True) == 0
        assert fragments(data) == []
