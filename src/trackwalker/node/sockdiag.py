"""TCP connections as the kernel knows them (what `ss -ti` shows), of any network namespace we may enter."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_DUMP = 0x301  # request, all of them
_DONE, _ERROR = 3, 2
_INFO = 2  # the attribute that holds tcp_info
_ESTABLISHED = 1 << 1
_NEW_NET = 0x40000000
_GET_FLAGS = 0x8913
_RUNNING = 0x40  # up, and with a carrier
_UP = 0x1
_HEADER, _MESSAGE = 16, 72
_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Connection:
    """One established connection."""

    inode: int
    idle_s: float  # since it last sent data
    rtt_s: float
    retransmits: int


class Namespace:
    """One network namespace, opened once: a socket stays in the namespace it was made in."""

    def __init__(self, path: str) -> None:
        """Raises OSError where we may not enter it."""
        self._diag, self._plain = _sockets(path)

    def close(self) -> None:
        """Let go of it."""
        self._diag.close()
        self._plain.close()

    def connections(self) -> Iterator[Connection]:
        """All established TCP connections."""
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED)
            self._diag.send(struct.pack("=IHHII", _HEADER + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
            yield from self._answer()

    def _answer(self) -> Iterator[Connection]:
        while True:
            data = self._diag.recv(1 << 16)
            at = 0
            while at + _HEADER <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind in (_DONE, _ERROR) or length < _HEADER:
                    return
                found = _connection(data[at + _HEADER : at + length])
                if found is not None:
                    yield found
                at += (length + 3) & ~3

    def link_works(self, device: str) -> bool | None:
        """Whether a device that is switched on has a carrier; None for one that is switched off or not there."""
        request = struct.pack("16sH14x", device.encode(), 0)
        try:
            flags = int(struct.unpack_from("=16xH", fcntl.ioctl(self._plain, _GET_FLAGS, request))[0])
        except OSError:
            return None
        return bool(flags & _RUNNING) if flags & _UP else None


def _connection(message: bytes) -> Connection | None:
    if len(message) < _MESSAGE:
        return None
    inode = int(struct.unpack_from("=I", message, 68)[0])
    at = _MESSAGE
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _INFO and length >= 4 + 104:
            sent_ms, rtt_us, retransmits = (struct.unpack_from("=I", message, at + 4 + n)[0] for n in (44, 68, 100))
            return Connection(inode, sent_ms / 1e3, rtt_us / 1e6, retransmits)
        if length < 4:
            return None
        at += (length + 3) & ~3
    return None


def _sockets(path: str) -> tuple[socket.socket, socket.socket]:
    """The two sockets we need, made by a thread that went into the namespace and ends there."""
    made: list[socket.socket] = []
    trouble: list[OSError] = []

    def make() -> None:
        try:
            if os.stat(path).st_ino != os.stat("/proc/thread-self/ns/net").st_ino:
                _enter(path)
            made.append(socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG))
            made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        except OSError as e:
            trouble.append(e)

    thread = threading.Thread(target=make, name="netns")
    thread.start()
    thread.join()
    if trouble:
        for one in made:
            one.close()
        raise trouble[0]
    made[0].settimeout(_TIMEOUT_S)
    return made[0], made[1]


def _enter(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _NEW_NET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)
