"""The network as each rank sees it: its own TCP connections, and its own devices where it has a namespace of its own.

The machine's counters cannot tell ranks apart. A rank whose round trips are long even on its fastest connection sits
behind the bad link; its neighbours have one slow connection and other fast ones.
"""

from __future__ import annotations

import os
import time

from trackwalker.job.processes import read_bytes
from trackwalker.node.collectors.lane import Lane
from trackwalker.node.exposition import Family
from trackwalker.node.sockdiag import Connection, Namespace
from trackwalker.node.sysfs import families

METRICS = {
    "hw_rank_tcp_connections": ("gauge", "TCP connections that sent data in the last seconds."),
    "hw_rank_tcp_rtt_seconds": ("gauge", "Round trip of the rank's fastest TCP connection in use."),
    "hw_rank_tcp_retransmits_total": ("counter", "TCP segments the rank sent again."),
    "hw_net_up": ("gauge", "1 when the device's link works."),
}
_IN_USE_S = 5.0
_SOCKETS_EVERY_S = 10.0  # finding out whose a connection is reads every file descriptor


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
        self._in_use: list[Connection] = []

    def take(self, connections: list[Connection]) -> None:
        """Take in all connections of the rank's namespace; only its own count."""
        if time.monotonic() - self._looked > _SOCKETS_EVERY_S or not self._sockets:
            self._sockets = {inode for pid in self.lane.members for inode in _sockets_of(pid)}
            self._looked = time.monotonic()
        mine = [c for c in connections if c.inode in self._sockets]
        for c in mine:
            self._retransmits += max(0, c.retransmits - self._counted.get(c.inode, 0))
        self._counted = {c.inode: c.retransmits for c in mine}
        self._in_use = [c for c in mine if c.idle_s < _IN_USE_S]

    def add(self, out: dict[str, Family]) -> None:
        """Add the samples of now."""
        labels = {"host": self.lane.host, "rank": str(self.lane.rank)}
        out["hw_rank_tcp_connections"].add(len(self._in_use), None, **labels)
        out["hw_rank_tcp_retransmits_total"].add(self._retransmits, None, **labels)
        if self._in_use:
            out["hw_rank_tcp_rtt_seconds"].add(min(c.rtt_s for c in self._in_use), None, **labels)


def _add_links(out: dict[str, Family], space: Namespace, lane: Lane) -> None:
    for row in (read_bytes(f"/proc/{lane.main}/net/dev") or b"").decode("utf-8", "replace").splitlines()[2:]:
        device = row.strip().rpartition(":")[0]
        works = space.link_works(device) if device and device != "lo" else None
        out["hw_net_up"].add(None if works is None else int(works), None, device=device, host=lane.host)


def _sockets_of(pid: int) -> list[int]:
    found = []
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.append(int(target[8:-1]))
    return found


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
