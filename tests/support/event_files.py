"""Writes TensorBoard event files, as MaxText's writer does: one record for each scalar."""

from __future__ import annotations

import struct
from pathlib import Path

from trackwalker.job.tfevents import masked_crc


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def record(step: int, wall: float, tag: str, value: float) -> bytes:
    """One scalar, framed."""
    scalar = _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    event = b"\x09" + struct.pack("<d", wall) + b"\x10" + _varint(step) + _field(5, _field(1, scalar))
    size = struct.pack("<Q", len(event))
    return size + struct.pack("<I", masked_crc(size)) + event + struct.pack("<I", masked_crc(event))


def write_events(
    folder: Path, steps: range, seconds: float = 10.0, begin: float = 1.7e9, host: str = "node001", tgs: float = 4096.0
) -> Path:
    """An event file of a run at constant speed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{int(begin)}.{host}.4242.0"
    data = bytearray()
    for n, step in enumerate(steps):
        wall = begin + (n + 1) * seconds
        for tag, value in (
            ("learning/loss", 9.0), ("perf/step_time_seconds", seconds), ("perf/per_device_tokens_per_sec", tgs),
            ("evaluation/loss", 3.0),
        ):  # fmt: skip
            data += record(step, wall, tag, value)
    path.write_bytes(data)
    return path
