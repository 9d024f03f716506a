"""This machine's network: every link with its state and speed, and every address with its prefix (by netlink)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from trackwalker.job.processes import read_bytes
from trackwalker.node.sensors.sysfs import line, names

_GET_ADDRESSES = 22  # RTM_GETADDR
_NEW = 20
_ADDRESS, _LOCAL = 1, 2  # IFA_*; on a point-to-point link the first is the other end's
_MESSAGE = 8
_TIMEOUT_S = 2.0
_LOOPBACK = "772"  # ARPHRD_*
_INFINIBAND = "32"
_DUMP = 0x301  # of netlink: a request for all that there is
_DONE, _ERROR = 3, 2
_HEADER = 16


@dataclass(frozen=True)
class Link:
    """One network device."""

    name: str
    up: bool
    speed: int  # Mb/s, 0 when it does not say
    kind: str  # physical, bond, vlan, bridge, loopback or virtual
    rdma: bool  # whether the card is an RDMA adapter too


@dataclass(frozen=True)
class Nic:
    """One address and the link that has it: what a node tells the others about itself."""

    name: str
    address: str
    prefix: int
    up: bool = True
    speed: int = 0
    kind: str = "physical"
    rdma: bool = False


def nics(sysfs: str = "/sys") -> list[Nic]:
    """Every address of this machine."""
    known = {link.name: link for link in links(sysfs)}
    found = []
    for name, address, prefix in addresses():
        link = known.get(name) or Link(name, True, 0, "virtual", False)
        found.append(Nic(name, address, prefix, link.up, link.speed, link.kind, link.rdma))
    return found


def links(sysfs: str = "/sys") -> list[Link]:
    """Every network device of this machine."""
    found = []
    for name in names(f"{sysfs}/class/net"):
        path = f"{sysfs}/class/net/{name}"
        if not os.path.isdir(path):  # bonding_masters is a file
            continue
        kind = _kind(path)
        state = line(f"{path}/operstate")
        # A loopback device, and some drivers, say "unknown": then the flags must do (IFF_UP).
        up = state == "up" or (state in ("unknown", "") and _number(line(f"{path}/flags"), 16) & 1 == 1)
        speed = max(0, _number(line(f"{path}/speed")))  # -1 while the link is down
        found.append(Link(name, up, speed if speed < 1 << 31 else 0, kind, bool(names(f"{path}/device/infiniband"))))
    return found


def _kind(path: str) -> str:
    if line(f"{path}/type") == _LOOPBACK:
        return "loopback"
    for folder, kind in (("bonding", "bond"), ("bridge", "bridge"), ("device", "physical")):
        if os.path.isdir(f"{path}/{folder}"):
            return kind
    if b"DEVTYPE=vlan" in (read_bytes(f"{path}/uevent") or b"") or line(f"{path}/type") == _INFINIBAND:
        return "vlan"  # a part of a physical link, as IPoIB partitions are
    return "virtual"


def _number(text: str, base: int = 10) -> int:
    try:
        return int(text, base)
    except ValueError:
        return 0


def addresses() -> Iterator[tuple[str, str, int]]:
    """Device, address and prefix length of every IPv4 and IPv6 address, in the kernel's order."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(_TIMEOUT_S)
        request = struct.pack("=BBBBi", socket.AF_UNSPEC, 0, 0, 0, 0)
        for kind, message in dump(s, _GET_ADDRESSES, request):
            if kind == _NEW and (found := _address(message)):
                yield found


def _address(message: bytes) -> tuple[str, str, int] | None:
    family, prefix, _, _, index = struct.unpack_from("=BBBBi", message)
    told = attributes(message, _MESSAGE)
    raw = told.get(_LOCAL) or told.get(_ADDRESS)
    if raw is None or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        return socket.if_indextoname(index), socket.inet_ntop(family, raw), prefix
    except (OSError, ValueError):
        return None  # the device has just gone


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
