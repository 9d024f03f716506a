"""Damage to bytes, as disks, networks and people do it: flips, cuts, numbers at their limits, pieces of other files."""

from __future__ import annotations

import random
import struct

_LIMITS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63)
_TEXTS = (
    b"9" * 30, b"-1", b"1e999", b"NaN", b"null", b'""', b"[" * 2000, b'{"a":' * 500, b"\xff\xfe", b"\x00",
    b"..", b"../../x", b"/", b"\n", b'"', b"}", b"]", b",",
)  # fmt: skip


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One to a few changes of one input; the same generator state gives the same bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _change(out, others, rng)
    return bytes(out)


def _change(out: bytearray, others: list[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(out) + 1)
    kind = rng.randrange(9)
    if not out or kind == 0:  # numbers at their limits, in both byte orders and as varint
        number = rng.choice(_LIMITS)
        form = rng.choice(("<Q", ">Q", "<I", ">I", ">H", "varint"))
        bits = {"Q": 64, "I": 32, "H": 16}.get(form[-1])
        put = struct.pack(form, number & ((1 << bits) - 1)) if bits else _varint(number)
        out[at : at + len(put)] = put
    elif kind == 1:
        out[min(at, len(out) - 1)] ^= 1 << rng.randrange(8)
    elif kind == 2:
        out[min(at, len(out) - 1)] = rng.randrange(256)
    elif kind == 3:
        del out[at:]
    elif kind == 4:
        del out[at : at + rng.choice((1, 2, 8, 64, 4096))]
    elif kind == 5:
        out[at:at] = rng.choice(_TEXTS)
    elif kind == 6:
        end = min(len(out), at + rng.choice((4, 64, 1024)))
        out[at:at] = bytes(out[at:end]) * rng.choice((1, 2, 16))
    elif kind == 7:
        other = rng.choice(others)
        start = rng.randrange(len(other) + 1)
        out[at : at + rng.choice((0, 16, 1024))] = other[start : start + rng.choice((16, 256, 4096))]
    else:
        end = at + rng.choice((4, 16, 128))
        out[at:end] = bytes(rng.choice((0, 0x80, 0xFF)) for _ in range(min(len(out), end) - at))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
