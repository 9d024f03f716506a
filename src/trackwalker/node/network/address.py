"""Where the agent serves: loopback when the whole job is here, else a private address that the other nodes reach."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import NamedTuple

from trackwalker.node.network.interfaces import addresses

LOOPBACK = "127.0.0.1"
# Not ipaddress.is_private: it also counts documentation and benchmark ranges, and differs between Python versions.
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "fc00::/7")
]
# Networks that exist on this machine only: no other node reaches them.
INSIDE = ("lo", "docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "podman", "lxc", "lxd")
_HINT = "set TRACKWALKER_LISTEN to an interface, an address or a network of this node"


class NoAddress(Exception):
    """There is no address that may be served on; the message says what to do."""


class Interface(NamedTuple):
    """One address of this machine and the device that has it."""

    name: str
    address: str


def serving_address(
    wanted: str,
    coordinator: str,
    found: list[Interface] | None = None,
    route: Callable[[str], str] | None = None,
) -> str:
    """What was asked for, else the private address towards the coordinator, else any private one; never all of them."""
    found = interfaces() if found is None else found
    if wanted:
        return _asked_for(wanted, found)
    private = [i.address for i in found if is_private(i.address) and not i.name.startswith(INSIDE)]
    towards = (route or source_address)(coordinator) if coordinator else ""
    if towards in private:
        return towards
    if private:
        return private[0]
    raise NoAddress(f"this node has no private address; {_HINT}")


def _asked_for(wanted: str, found: list[Interface]) -> str:
    try:
        network = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        network = None
    if network is not None and network.num_addresses == 1:
        if network.network_address.is_unspecified or network.network_address.is_multicast:
            raise NoAddress(f"{wanted} is not one address; {_HINT}")
        return str(network.network_address)
    for interface in found:
        if interface.name == wanted or (network is not None and ipaddress.ip_address(interface.address) in network):
            return interface.address
    raise NoAddress(f"{wanted}: no interface, address or network of this node; {_HINT}")


def is_private(address: str) -> bool:
    """Whether no stranger on the Internet can reach the address."""
    return any(ipaddress.ip_address(address) in network for network in _PRIVATE)


def interfaces() -> list[Interface]:
    """The addresses of every device in the kernel's order, IPv4 first; none where it cannot be asked."""
    try:
        return [Interface(name, address) for name, address, _ in addresses()]
    except OSError:
        return []


def source_address(towards: str) -> str:
    """The address this machine would send from; empty when there is no way. Nothing is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as s:
            s.connect(address)
            return str(s.getsockname()[0])
    except OSError:
        return ""


def host_port(address: str, port: int) -> str:
    """How a URL names them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
