"""A bad cable: copies frames between two devices, loses some of one direction, delays both. Raw sockets, as root.

`python -m trackwalker.lab.real.relay RANK_SIDE SWITCH_SIDE LOSS DELAY_S PARENT`; it ends when the parent is gone.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import select
import socket
import sys
import time

_ETH_P_ALL = 3
_SOL_PACKET = 263
_ADD_MEMBERSHIP, _VNET_HDR, _IGNORE_OUTGOING = 1, 15, 23
_PROMISCUOUS = 1
_BUFFER = 8 << 20
_LONGEST = (1 << 16) + 128  # a frame before segmentation, and its header
_LOOK_AT_PARENT_S = 1.0


def open_device(name: str) -> socket.socket:
    """A raw socket on a device that takes every frame, whole (with its segmentation header) and incoming ones only."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    raw.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    raw.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    raw.bind((name, _ETH_P_ALL))
    index = socket.if_nametoindex(name)
    request = index.to_bytes(4, sys.byteorder) + _PROMISCUOUS.to_bytes(2, sys.byteorder) + bytes(10)
    raw.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
    raw.setblocking(False)
    return raw


def relay(rank_side: socket.socket, switch_side: socket.socket, loss: float, delay_s: float, parent: int) -> None:
    """Copy until the parent is gone; the order of frames is kept."""
    other = {rank_side: switch_side, switch_side: rank_side}
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    count, looked = 0, time.monotonic()
    chance = random.SystemRandom()
    while True:
        now = time.monotonic()
        if now - looked > _LOOK_AT_PARENT_S:
            looked = now
            if os.getppid() != parent:
                return
        while waiting and waiting[0][0] <= now:
            _, _, out, frame = heapq.heappop(waiting)
            _send(out, frame)
        pause = min(_LOOK_AT_PARENT_S, waiting[0][0] - now) if waiting else _LOOK_AT_PARENT_S
        for source in select.select(list(other), [], [], max(0.0, pause))[0]:
            try:
                frame = source.recv(_LONGEST)
            except OSError:
                continue  # the device went down for a moment
            if source is rank_side and chance.random() < loss:
                continue
            if delay_s:
                count += 1
                heapq.heappush(waiting, (time.monotonic() + delay_s, count, other[source], frame))
            else:
                _send(other[source], frame)


def _send(out: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # a full queue loses frames as a real link does
        out.send(frame)


def main(words: list[str]) -> int:
    """Run the relay from the command line."""
    rank_side, switch_side, loss, delay_s, parent = words
    relay(open_device(rank_side), open_device(switch_side), float(loss), float(delay_s), int(parent))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
