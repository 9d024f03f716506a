"""Blocks: chunks where the index says, cut as Prometheus cuts, the same bytes every time."""

from __future__ import annotations

import json
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from xor_decoder import Bits, decode

from conftest import tree_hash
from trackwalker.telemetry.blocks import BLOCK_MS, BlockWriter, labels

START = 10 * BLOCK_MS + 1000


def write(folder: Path, samples: int = 300, every: int = 60_000) -> BlockWriter:
    writer = BlockWriter(folder, seed=7)
    times = START + every * np.arange(samples, dtype=np.int64)
    names = [labels("power", host=f"h{i}", gpu="0") for i in range(3)]
    writer.add(names, times, np.arange(3 * samples, dtype=float).reshape(3, samples))
    assert writer.close() == 3 * samples
    return writer


def chunks_of(block: Path) -> list[list[tuple[int, float]]]:
    return chunks_in(block / "chunks" / "000001")


def chunks_in(file: Path) -> list[list[tuple[int, float]]]:
    data = file.read_bytes()
    assert data[:8] == bytes.fromhex("85BD40DD01000000")
    at, out = 8, []
    while at < len(data):
        length = Bits(data[at:]).uvarint()
        at += 1 + (length >= 128) + (length >= 16384)
        body = data[at : at + 1 + length]
        assert body[0] == 1, "XOR encoding"
        crc = int.from_bytes(data[at + 1 + length : at + 5 + length], "big")
        assert google_crc32c.value(body) == crc
        out.append(decode(body[1:]))
        at += 5 + length
    return out


def test_blocks_of_two_hours_and_chunks_of_120(tmp_path: Path) -> None:
    write(tmp_path)
    blocks = sorted(tmp_path.iterdir())
    assert [b.name for b in blocks] == sorted(b.name for b in blocks)
    assert len(blocks) == 3, "300 minutes from the beginning of a block"
    seen = 0
    for number, block in enumerate(blocks):
        meta = json.loads((block / "meta.json").read_text())
        chunks = chunks_of(block)
        first, last = (10 + number) * BLOCK_MS, (11 + number) * BLOCK_MS
        assert all(first <= t < last for chunk in chunks for t, _ in chunk)
        assert all(len(chunk) <= 120 for chunk in chunks)
        assert meta["stats"] == {"numSamples": sum(map(len, chunks)), "numSeries": 3, "numChunks": len(chunks)}
        assert meta["minTime"] == min(c[0][0] for c in chunks)
        assert meta["maxTime"] == max(c[-1][0] for c in chunks) + 1
        seen += sum(map(len, chunks))
    assert seen == 900


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    assert tree_hash(tmp_path / "a") == tree_hash(tmp_path / "b")


def test_a_full_chunk_file_is_followed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one")
    monkeypatch.setattr("trackwalker.telemetry.blocks._SEGMENT_BYTES", 100)
    write(tmp_path / "many")
    for one, many in zip(sorted((tmp_path / "one").iterdir()), sorted((tmp_path / "many").iterdir()), strict=True):
        files = sorted((many / "chunks").iterdir())
        assert len(files) > 1
        assert [c for f in files for c in chunks_in(f)] == chunks_of(one)


@pytest.mark.parametrize("section", [b"host", b"h2", b"power"])
def test_every_label_is_in_the_symbols(tmp_path: Path, section: bytes) -> None:
    write(tmp_path)
    for block in tmp_path.iterdir():
        assert section in (block / "index").read_bytes()
