"""Ports for the coordinator and Ray, held by binding them until the service that needs them starts."""

from __future__ import annotations

import errno
import socket
import zlib
from collections.abc import Collection, Iterator, Sequence

from trackwalker.job.processes import read_bytes

RAY_WORKERS = range(10002, 20000)  # Ray gives these to its workers, whoever else may want them
KNOWN = frozenset((6006, 8265, 9190, 9400, 55080))  # TensorBoard, Ray's dashboard, Prometheus, exporter, Ray's metrics
_FIRST, _LAST = 20000, 65535


class NoPort(Exception):
    """Every port is taken."""


class HeldPorts:
    """Distinct free ports by name. Each is bound on all addresses, because the service may bind them all, and does not
    listen, so nobody can connect; another job that looks for ports on this host finds them taken."""

    def __init__(
        self, names: Sequence[str], job_id: str = "", avoid: Collection[int] = (), proc: str = "/proc"
    ) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self.ports: dict[str, int] = {}
        candidates = _candidates(job_id, avoid, proc)
        try:
            for name in names:
                self._sockets[name], self.ports[name] = _hold(candidates, name)
        except NoPort:
            self.close()
            raise

    def release(self, name: str) -> int:
        """The port, free for the service that is about to bind it."""
        self._sockets.pop(name).close()
        return self.ports[name]

    def close(self) -> None:
        """Let go of those not yet released."""
        for held in self._sockets.values():
            held.close()
        self._sockets.clear()

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _candidates(job_id: str, avoid: Collection[int], proc: str) -> Iterator[int]:
    """Ports outside the ephemeral range first: one inside it may become somebody's outgoing connection at any time.

    Each job starts at another place, so that two jobs on one host seldom reach for the same port.
    """
    first, last = ephemeral_range(proc)
    good = [p for p in range(_FIRST, _LAST + 1) if p not in KNOWN and p not in avoid]
    for group in ([p for p in good if not first <= p <= last], [p for p in good if first <= p <= last]):
        start = zlib.crc32(job_id.encode()) % len(group) if group else 0
        yield from group[start:] + group[:start]


def ephemeral_range(proc: str = "/proc") -> tuple[int, int]:
    """Where the kernel takes the ports of outgoing connections from."""
    fields = (read_bytes(f"{proc}/sys/net/ipv4/ip_local_port_range") or b"32768 60999").split()
    return int(fields[0]), int(fields[1])


def _hold(candidates: Iterator[int], name: str) -> tuple[socket.socket, int]:
    for port in candidates:
        held = _bound(port)
        if held is not None:
            return held, port
    raise NoPort(f"Could not find a free port for {name}")


def _bound(port: int) -> socket.socket | None:
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - it never listens
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a kernel without IPv6
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # IPv4 too
            held.bind((address, port))
        except OSError as error:
            held.close()
            if error.errno == errno.EADDRINUSE:
                return None
        else:
            return held
    return None
