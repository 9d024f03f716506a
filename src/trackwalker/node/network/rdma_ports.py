"""RDMA ports and their GID tables, as /sys/class/infiniband shows them."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass

from trackwalker.job.processes import read_bytes
from trackwalker.node.sensors.sysfs import line, names, target

_RATE = re.compile(r"([\d.]+) Gb/sec")
# Not is_link_local: what it says of an IPv4-mapped address differs between Python versions.
_LINK_LOCAL = ipaddress.ip_network("fe80::/10")
ETHERNET = "Ethernet"


@dataclass(frozen=True)
class Port:
    """One port of one adapter."""

    device: str
    port: str
    active: bool
    rate: float  # Gb/s
    link_layer: str  # InfiniBand or Ethernet (RoCE)
    driver: str
    model: str  # PCI vendor:device: cards of one make
    alone: bool  # whether the adapter has no other port
    path: str

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA names it: the port is added where the device has several."""
        return self.device if self.alone else f"{self.device}:{self.port}"


@dataclass(frozen=True)
class Gid:
    """One filled slot of a port's GID table."""

    index: int
    address: ipaddress.IPv6Address
    kind: str  # "RoCE v2", "IB/RoCE v1"; empty where the driver does not say

    @property
    def v2(self) -> bool:
        """Whether packets travel as UDP, which routers forward."""
        return "v2" in self.kind

    @property
    def routable(self) -> bool:
        """Not link-local. An IPv4-mapped address (::ffff:10.0.0.1) starts with zeros and is as good as any."""
        return self.address not in _LINK_LOCAL


def ports(sysfs: str = "/sys") -> list[Port]:
    """Every port of every adapter, in natural order (mlx5_2 before mlx5_10)."""
    root = f"{sysfs}/class/infiniband"
    found = []
    for device in sorted(names(root), key=_natural):
        numbers = sorted(names(f"{root}/{device}/ports"), key=_natural)
        card = f"{root}/{device}/device"
        for number in numbers:
            path = f"{root}/{device}/ports/{number}"
            state = line(f"{path}/state")
            rate = _RATE.match(line(f"{path}/rate"))
            found.append(
                Port(
                    device=device,
                    port=number,
                    active="ACTIVE" in state or not state,  # a driver that does not say is believed
                    rate=float(rate[1]) if rate else 0.0,
                    link_layer=line(f"{path}/link_layer"),
                    driver=target(f"{card}/driver"),
                    model=f"{line(f'{card}/vendor')}:{line(f'{card}/device')}",
                    alone=len(numbers) == 1,
                    path=path,
                )
            )
    return found


def gids(port: Port) -> list[Gid]:
    """The filled slots, in the order of their numbers: as text, 10 would come before 2."""
    found = []
    for slot in sorted((n for n in names(f"{port.path}/gids") if n.isdigit()), key=int):
        text = line(f"{port.path}/gids/{slot}")
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            continue
        if int(address):
            found.append(Gid(int(slot), address, line(f"{port.path}/gid_attrs/types/{slot}")))
    return found


def has_kernel_files(boot: str, release: str) -> bool:
    """Whether the running kernel's files (its config) are in /boot: NCCL's DMABUF probe reads them."""
    return bool(release) and any(release in name for name in names(boot))


def kernel_release(proc: str = "/proc") -> str:
    """Of the kernel that runs."""
    return (
        (read_bytes(f"{proc}/sys/kernel/osrelease") or os.uname().release.encode()).decode("utf-8", "replace").strip()
    )


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.findall(r"\d+|\D+", name)]
