"""W&B's offline files: steps with their times, also across blocks, from a cut file, and from damage."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np

from trackwalker.logs.formats.wandb import read_wandb

BLOCK = 1 << 15


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def row(about: dict[str, object]) -> bytes:
    """A record with one row of the history, after its own number."""
    items = [field(1, field(1, key.encode()) + field(16, json.dumps(value).encode())) for key, value in about.items()]
    return varint(1 << 3) + varint(7) + field(2, b"".join(items))


def written(records: list[bytes]) -> bytes:
    """As W&B writes them: in blocks, a record that does not fit in pieces."""
    out = bytearray(b":W&B" + b"\xe1\xbe\x00")
    for record in records:
        rest, first = record, True
        while rest or first:
            left = BLOCK - len(out) % BLOCK
            if left < 7:
                out += bytes(left)
                continue
            piece, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            out += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
    return bytes(out)


def steps(tmp_path: Path, data: bytes) -> list[int]:
    path = tmp_path / "run-1.wandb"
    path.write_bytes(data)
    found = read_wandb([path])
    return [] if found is None else [int(step) for step in found.step]


def history(count: int) -> list[bytes]:
    long = {50: "x" * 70000}
    return [
        row({"_step": s, "_timestamp": 1000.0 + s, "train/loss": 1.5, "note": long.get(s, "")})
        for s in range(1, count + 1)
    ]


def test_steps_and_times_also_of_records_in_pieces(tmp_path: Path) -> None:
    assert steps(tmp_path, written(history(900))) == list(range(1, 901))
    found = read_wandb([tmp_path / "run-1.wandb"])
    assert found is not None
    assert np.allclose(found.written - found.step, 1000.0)
    assert np.isnan(found.seconds[0])
    assert np.allclose(found.seconds[1:], 1.0)


def test_evaluation_and_bare_rows_are_no_steps(tmp_path: Path) -> None:
    rows = [
        row({"_step": 1, "_timestamp": 1.0, "eval/loss": 2}),
        row({"_step": 2, "_timestamp": 2.0}),
        row({"_step": 3, "_timestamp": 3.0, "loss": 2}),
        row({"_step": -4, "_timestamp": 3.0, "loss": 2}),
        row({"_step": "5", "_timestamp": None, "loss": 2}),
    ]
    assert steps(tmp_path, written(rows)) == [3]


def test_a_cut_file_gives_what_it_has_and_damage_never_raises(tmp_path: Path) -> None:
    whole = written(history(300))
    cut = steps(tmp_path, whole[: len(whole) // 2])
    assert cut == list(range(1, len(cut) + 1))
    assert len(cut) > 30
    chance = random.Random(1)
    for _ in range(300):
        damaged = bytearray(whole[:4000])
        for _ in range(5):
            damaged[chance.randrange(7, len(damaged))] = chance.randrange(256)
        steps(tmp_path, bytes(damaged))
    assert steps(tmp_path, b"") == []
    assert steps(tmp_path, b"not W&B at all" * 1000) == []
