"""The network as each rank sees it: its own TCP connections, and its own devices where it has a namespace of its own.

The machine's counters cannot tell ranks apart. A rank whose round trips are long even on its fastest connection sits
behind the bad link; its neighbours have one slow connection and other fast ones. What a connection to the same machine
waits for or repeats is the CPUs' doing, and no path's: only those that leave it are measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from trackwalker.job.processes import read_bytes
from trackwalker.node.collectors.lane import Lane
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.network.interfaces import attributes, dump
from trackwalker.node.sensors.sysfs import declared, families

METRICS = declared("rank_net")
_IN_USE_S = 5.0
_SOCKETS_EVERY_S = 10.0  # finding out whose a connection is reads every file descriptor


# TCP connections as the kernel knows them (what `ss -ti` shows), of any network namespace we may enter.
_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_INFO = 2  # the attribute that holds tcp_info
_ESTABLISHED = 1 << 1
_NEW_NET = 0x40000000
_GET_FLAGS = 0x8913
_RUNNING = 0x40  # up, and with a carrier
_UP = 0x1
_MESSAGE = 72
_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Connection:
    """One established connection."""

    inode: int
    idle_s: float  # since it last sent data
    rtt_s: float
    retransmits: int
    near: bytes  # its own address, and the other end's
    far: bytes


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
            found = (_connection(message) for _, message in dump(self._diag, _BY_FAMILY, request))
            yield from (each for each in found if each is not None)

    def link_works(self, device: str) -> bool | None:
        """Whether a device that is switched on has a carrier; None for one that is switched off or not there."""
        request = struct.pack("16sH14x", device.encode(), 0)
        try:
            flags = int(struct.unpack_from("=16xH", fcntl.ioctl(self._plain, _GET_FLAGS, request))[0])
        except OSError:
            return None
        return bool(flags & _RUNNING) if flags & _UP else None


def _connection(message: bytes) -> Connection | None:
    info = attributes(message, _MESSAGE).get(_INFO, b"")
    if len(info) < 104:
        return None
    sent_ms, rtt_us, retransmits = (struct.unpack_from("=I", info, n)[0] for n in (44, 68, 100))
    near, far = (_address(message[n : n + 16], message[0]) for n in (8, 24))
    inode = int(struct.unpack_from("=I", message, 68)[0])
    return Connection(inode, sent_ms / 1e3, rtt_us / 1e6, retransmits, near, far)


def _address(told: bytes, family: int) -> bytes:
    """An address as a socket of both families has it: two ends of one connection may be of different ones."""
    return bytes(10) + b"\xff\xff" + told[:4] if family == socket.AF_INET else told


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


class RankNetCollector:
    """Per-rank TCP; a namespace that may not be entered costs its metrics."""

    name = "rank-net"

    def __init__(self, lanes: list[Lane]) -> None:
        self._ranks = [_Rank(lane) for lane in lanes]
        self._spaces: dict[int, Namespace | None] = {}  # by inode; None: we may not enter
        self._own = _inode("/proc/self/ns/net")

    def collect(self) -> list[Family]:
        """The families of all ranks."""
        out = families(METRICS)
        seen: dict[int, list[Connection]] = {}
        for rank in self._ranks:
            space_id = _inode(f"/proc/{rank.lane.main}/ns/net")
            space = self._open(space_id, rank.lane.main)
            if space is None or space_id is None:
                continue
            try:
                if space_id not in seen:
                    seen[space_id] = list(space.connections())
                rank.take(seen[space_id])
            except OSError:
                continue
            rank.add(out)
            if space_id != self._own:
                _add_links(out, space, rank.lane)
        return list(out.values())

    def _open(self, space_id: int | None, pid: int) -> Namespace | None:
        if space_id is not None and space_id not in self._spaces:
            try:
                self._spaces[space_id] = Namespace(f"/proc/{pid}/ns/net")
            except OSError:
                self._spaces[space_id] = None
        return self._spaces.get(space_id) if space_id is not None else None


class _Rank:
    """Adds up one rank's connections, those that were closed since included."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._retransmits = 0
        self._counted: dict[int, int] = {}  # inode -> retransmits already added
        self._sockets: set[int] = set()
        self._looked = 0.0
        self._in_use = 0
        self._round_trips: list[float] = []  # of those that leave the machine

    def take(self, connections: list[Connection]) -> None:
        """Take in all connections of the rank's namespace; only its own count."""
        if time.monotonic() - self._looked > _SOCKETS_EVERY_S or not self._sockets:
            self._sockets = {inode for pid in self.lane.members for inode in sockets_of(pid)}
            self._looked = time.monotonic()
        mine = [c for c in connections if c.inode in self._sockets]
        here = {c.near for c in connections}
        out = [c for c in mine if c.far not in here]
        self._retransmits += sum(max(0, c.retransmits - self._counted.get(c.inode, 0)) for c in out)
        self._counted = {c.inode: c.retransmits for c in out}
        self._in_use = sum(c.idle_s < _IN_USE_S for c in mine)
        self._round_trips = [c.rtt_s for c in out if c.idle_s < _IN_USE_S]

    def add(self, out: dict[str, Family]) -> None:
        """Add the samples of now."""
        labels = {"host": self.lane.host, "rank": str(self.lane.rank)}
        out["hw_rank_tcp_connections"].add(self._in_use, None, **labels)
        out["hw_rank_tcp_retransmits_total"].add(self._retransmits, None, **labels)
        if self._round_trips:
            out["hw_rank_tcp_rtt_seconds"].add(min(self._round_trips), None, **labels)


def _add_links(out: dict[str, Family], space: Namespace, lane: Lane) -> None:
    for row in (read_bytes(f"/proc/{lane.main}/net/dev") or b"").decode("utf-8", "replace").splitlines()[2:]:
        device = row.strip().rpartition(":")[0]
        works = space.link_works(device) if device and device != "lo" else None
        out["hw_net_up"].add(None if works is None else int(works), None, device=device, host=lane.host)


def sockets_of(pid: int) -> set[int]:
    """The inodes of a process's sockets; none where we may not look."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed since
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                found |= {int(target[8:-1])} if target.startswith("socket:[") else set()
    return found


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
