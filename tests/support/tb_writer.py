"""Event files as TensorBoard writers lay them out, made byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

from trackwalker.job.tfevents import masked_crc


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def simple(tag: str, value: float) -> bytes:
    """A summary value as TensorFlow 1, tensorboardX and PyTorch write it."""
    return block(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)


def tensor(tag: str, content: bytes, plugin: str = "scalars") -> bytes:
    """A summary value as TensorFlow 2 and CLU write it."""
    return block(1, tag.encode()) + block(8, content) + block(9, block(1, block(1, plugin.encode())))


def event(step: int, at: float, *values: bytes) -> bytes:
    """An Event message."""
    head = varint(1 << 3 | 1) + struct.pack("<d", at) + varint(2 << 3) + varint(step)
    return head + (block(5, b"".join(block(1, v) for v in values)) if values else b"")


def record(body: bytes) -> bytes:
    """A message framed with its length and both checksums."""
    length = struct.pack("<Q", len(body))
    return length + struct.pack("<I", masked_crc(length)) + body + struct.pack("<I", masked_crc(body))


class EventWriter:
    """Appends steps to one event file; each scalar is an event of its own, as tensorboardX writes them."""

    def __init__(self, directory: Path, name: str = "events.out.tfevents.1.box") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / name

    def step(self, number: int, at: float, **scalars: float) -> None:
        """One step; `learning__loss` stands for the tag learning/loss."""
        tags = {tag.replace("__", "/"): value for tag, value in scalars.items()}
        self.raw(b"".join(record(event(number, at, simple(tag, value))) for tag, value in tags.items()))

    def raw(self, data: bytes) -> None:
        """Any bytes."""
        with self.path.open("ab") as file:
            file.write(data)
