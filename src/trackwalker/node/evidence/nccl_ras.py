"""NCCL's own view of the job (RAS, NCCL 2.24 and later): a text question to a port of this machine.

Only the reading command is ever sent. RCCL has no such port; where nobody listens there is no answer and no harm.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

DEFAULT = "localhost:28028"
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
_ANSWER_S = 8.0  # it asks every process of the job, and waits for those that do not answer
_MOST = 1 << 20


def address(env: Mapping[str, str]) -> tuple[str, int]:
    """Where RAS listens, by NCCL_RAS_ADDR; an address that is not this machine's own is not asked."""
    host, _, port = (env.get("NCCL_RAS_ADDR") or DEFAULT).rpartition(":")
    if host not in _LOOPBACK or not port.isdigit():
        raise ValueError(f"NCCL_RAS_ADDR is not an address of this machine: {host}:{port}")
    return host.strip("[]"), int(port)


def ask(env: Mapping[str, str], limit_s: float = _ANSWER_S) -> bytes:
    """The verbose status as NCCL prints it; raises OSError where nobody listens."""
    if env.get("NCCL_RAS_ENABLE") == "0":
        raise OSError(0, "NCCL_RAS_ENABLE=0")
    deadline = time.monotonic() + limit_s
    parts: list[bytes] = []
    with socket.create_connection(address(env), timeout=2.0) as talk:
        talk.sendall(b"timeout 5\nverbose status\n")
        while sum(map(len, parts)) < _MOST:
            talk.settimeout(max(0.05, deadline - time.monotonic()))
            try:
                part = talk.recv(1 << 16)
            except socket.timeout:  # noqa: UP041 - the same as TimeoutError only since Python 3.10
                parts.append(b"\n(no end of the answer within the time)\n")
                break
            if not part:
                break
            parts.append(part)
    return b"".join(parts)[:_MOST]
