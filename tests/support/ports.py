"""Ports for what a test starts, so that nobody takes one between its choice and its use."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

# Below those that the kernel gives to whoever asks for any (from 32768 on), so no outgoing connection takes one; every
# worker has a thousand of its own, and another run of the tests begins elsewhere in it.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_FIRST = 10_000 + 1_000 * (_WORKER % 20)
_PORTS = (_FIRST + (os.getpid() + n) % 1_000 for n in itertools.count())


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now, all different."""
    found: list[int] = []
    while len(found) < count:
        port = next(_PORTS)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("", port))
            found.append(port)
    return found
