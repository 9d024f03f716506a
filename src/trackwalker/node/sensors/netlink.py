"""Questions to the kernel over netlink: one request, a list of messages as the answer."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_DUMP = 0x301  # request, all of them
_DONE, _ERROR = 3, 2
_HEADER = 16


def dump(asked: socket.socket, kind: int, request: bytes) -> Iterator[tuple[int, bytes]]:
    """Ask for all that there is of a kind; kind and body of each message of the answer."""
    asked.send(struct.pack("=IHHII", _HEADER + len(request), kind, _DUMP, 1, 0) + request)
    while True:
        data = asked.recv(1 << 16)
        at = 0
        while at + _HEADER <= len(data):
            length, answered = struct.unpack_from("=IH", data, at)
            if answered in (_DONE, _ERROR) or length < _HEADER:
                return
            yield answered, data[at + _HEADER : at + length]
            at += (length + 3) & ~3


def attributes(message: bytes, at: int) -> dict[int, bytes]:
    """What follows the fixed part of a message, by its number."""
    found: dict[int, bytes] = {}
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            break
        found[kind] = message[at + 4 : at + length]
        at += (length + 3) & ~3
    return found
