"""Loopback ports for services of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
