"""One network for the whole job: node 0 decides it from what every node has, and everything else follows it.

The coordinator's address, NCCL's sockets and the exporters' binds come from the same decision. It is made from all
nodes at once, because a choice that looks right on one node (docker0, virbr0) leads nowhere from the next. Without a
private network that joins all nodes nothing is opened, unless the user says so; what the user names is always taken.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from trackwalker.job.processes import read_bytes
from trackwalker.node.network.address import INSIDE, LOOPBACK, is_private
from trackwalker.node.network.interfaces import Nic, nics

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

_OVERLAYS = (*INSIDE, "kube", "nodelocaldns", "weave", "vxlan", "tunl", "ifb", "dummy", "tailscale", "wg", "tap", "tun")
# Where Docker, Flannel and k3s put containers by default. A card or bond may well be numbered like that; a virtual
# device that is leads into this machine only.
_CONTAINERS = [ipaddress.ip_network(n) for n in ("172.17.0.0/16", "10.244.0.0/16", "10.42.0.0/16", "10.43.0.0/16")]
_ONE_LINK = [ipaddress.ip_network(n) for n in ("169.254.0.0/16", "fe80::/10")]  # no route leads there (BMC over USB)
_BLOCKS = [ipaddress.ip_network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
_HINT = "set NCCL_SOCKET_IFNAME to the interface to use, or name the network to listen on (TRACKWALKER_LISTEN)"


class NoNetwork(Exception):
    """No network may be used; the message says what was found and what to do."""


@dataclass(frozen=True)
class NodeNet:
    """What one node tells node 0 about its network."""

    host: str
    machine: str  # the boot id: nodes that share it are one machine
    nics: Sequence[Nic]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> NodeNet:
        """Back from the rendezvous."""
        return cls(record["host"], record["machine"], [Nic(**n) for n in record["nics"]])


def this_node(host: str, proc: str = "/proc", sysfs: str = "/sys") -> NodeNet:
    """The network of the machine we are on."""
    machine = (read_bytes(f"{proc}/sys/kernel/random/boot_id") or host.encode()).decode("utf-8", "replace").strip()
    return NodeNet(host, machine, nics(sysfs))


@dataclass(frozen=True)
class Wishes:
    """What the user has said; empty where the plan may decide."""

    socket_ifname: str = ""  # NCCL_SOCKET_IFNAME in NCCL's own grammar
    coordinator: str = ""  # address or name that the ranks shall meet at
    network: str = ""  # interface, address or network to listen on
    public: bool = False  # addresses that the Internet can reach may be used


@dataclass(frozen=True)
class Place:
    """One node's part of the plan."""

    host: str
    interface: str
    bind: str  # where listeners (exporter, Ray) bind: never all addresses
    socket_ifname: str  # NCCL_SOCKET_IFNAME; empty: leave it to NCCL


@dataclass(frozen=True)
class NetworkPlan:
    """The decision: one place for each node, in the order of their ranks."""

    coordinator: str
    network: str
    places: list[Place]
    lines: list[str] = field(default_factory=list)  # for the log

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> NetworkPlan:
        """Back from plan.json."""
        return cls(**{**record, "places": [Place(**p) for p in record["places"]]})


def plan_network(nodes: Sequence[NodeNet], wishes: Wishes = Wishes()) -> NetworkPlan:  # noqa: B008 - frozen
    """Decide for all nodes, rank 0 first."""
    try:
        chosen, network, lines = _choose(nodes, wishes)
    except NoNetwork as error:
        if not wishes.coordinator and not wishes.socket_ifname:
            raise
        # What the user said stands by itself; only what nobody knows falls back, and to loopback.
        chosen, network, lines = [None] * len(nodes), "", [f"[WARN] {error}"]
    places = []
    for node, nic in zip(nodes, chosen):  # noqa: B905 - Python 3.9
        name = wishes.socket_ifname or (f"={nic.name}" if nic else "")
        places.append(Place(node.host, nic.name if nic else "", nic.address if nic else LOOPBACK, name))
        if len(nodes) > 1:
            lines.append(f"NCCL INFO {node.host}: NCCL_SOCKET_IFNAME={name or '(left to NCCL)'}")
        if nic and not is_private(nic.address) and nic.kind != "loopback":
            lines.append(f"[WARN] {node.host}: {nic.address} on {nic.name} is a public address, used because you asked")
    coordinator = wishes.coordinator or (chosen[0].address if chosen[0] else "")
    if not coordinator:
        first = nodes[0]
        raise NoNetwork(f"{first.host}: {wishes.socket_ifname} has no address here; set JAX_COORDINATOR_IP as well")
    return NetworkPlan(coordinator, network, places, lines)


def _choose(nodes: Sequence[NodeNet], wishes: Wishes) -> tuple[list[Nic | None], str, list[str]]:
    if wishes.socket_ifname:
        named = [_first(n, lambda nic: ifname_matches(wishes.socket_ifname, nic.name)) for n in nodes]
        return named, "", [_missing(n.host, wishes.socket_ifname) for n, nic in zip(nodes, named) if not nic]  # noqa: B905
    if wishes.network:
        return [_listening(n, wishes.network) for n in nodes], wishes.network, []
    if len({n.machine for n in nodes}) == 1:  # one node, or several on one machine: nobody else needs to get in
        return [Nic("lo", LOOPBACK, 8, kind="loopback") for _ in nodes], f"{LOOPBACK}/8", []
    return _common(nodes, wishes.public)


def _missing(host: str, wanted: str) -> str:
    return f"[WARN] {host}: no interface with an address matches {wanted}; its exporter stays on loopback"


def ifname_matches(pattern: str, name: str) -> bool:
    """NCCL's grammar: a comma list of prefixes, of exact names after `=`, of what to leave out after `^`."""
    excluded, exact = pattern.startswith("^"), pattern.lstrip("^").startswith("=")
    words = [w for w in pattern.lstrip("^=").split(",") if w]
    hit = any(name == w if exact else name.startswith(w) for w in words)
    return (not hit and name != "lo") if excluded else hit


def _first(node: NodeNet, good: Callable[[Nic], bool]) -> Nic | None:
    """The node's best address among those: up and IPv4 first."""
    found = [n for n in node.nics if good(n) and not _in(n.address, _ONE_LINK)]
    return min(found, key=lambda n: (not n.up, ":" in n.address), default=None)


def _listening(node: NodeNet, wanted: str) -> Nic:
    try:
        network: Network | None = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        network = None
    nic = _first(
        node,
        lambda n: n.name == wanted if network is None else _in(n.address, [network]),
    )
    if nic is None:
        raise NoNetwork(f"{node.host} has no address on {wanted}; it has {_inventory(node)}")
    return nic


def _common(nodes: Sequence[NodeNet], public: bool) -> tuple[list[Nic | None], str, list[str]]:
    """The best subnet that all nodes are in; else the best device name, where a router joins their subnets."""
    usable = [sorted((n for n in node.nics if _usable(n, public)), key=_number) for node in nodes]
    machines = len({n.machine for n in nodes})
    # A node with two cards in one subnet: better the one that has the same name everywhere.
    groups = _shared(usable, lambda n: (_subnet(n), n.name), machines) + _shared(usable, _subnet, machines)
    if groups:
        best = min(groups, key=_rank)
        return list(best), _subnet(best[0]), []
    routed = _shared(usable, lambda n: n.name, machines)
    if routed:
        best = min(routed, key=_rank)
        return list(best), "", [f"[WARN] different subnets, taken to be routed: {', '.join(map(_subnet, best))}"]
    raise NoNetwork(
        f"no {'' if public else 'private '}network joins all {len(nodes)} nodes: "
        f"{'; '.join(f'{n.host} has {_inventory(n)}' for n in nodes[:4])}; {_HINT}"
    )


def _shared(usable: Sequence[Sequence[Nic]], key: Callable[[Nic], Any], machines: int) -> list[list[Nic]]:
    """One card of each node for everything that all nodes have."""
    shared = set.intersection(*({key(n) for n in found} for found in usable))
    groups = [[next(n for n in found if key(n) == k) for found in usable] for k in sorted(shared)]
    # The same address on two machines: a network that every machine has for itself (virbr0 under another name).
    return [group for group in groups if len({n.address for n in group}) == machines]


def _usable(nic: Nic, public: bool) -> bool:
    virtual = nic.kind not in ("physical", "bond", "vlan")
    return (
        nic.up
        and nic.kind != "loopback"
        and not nic.name.startswith(_OVERLAYS)
        and not (virtual and _in(nic.address, _CONTAINERS))
        and not _in(nic.address, _ONE_LINK)
        and (public or is_private(nic.address))
    )


def _rank(group: Sequence[Nic]) -> tuple[Any, ...]:
    """Private before public, IPv4 before IPv6, management before RDMA rails, one name everywhere, fast, low."""
    first = ipaddress.ip_address(group[0].address)
    block = next((i for i, b in enumerate(_BLOCKS) if _in(str(first), [b])), len(_BLOCKS))
    return (
        any(not is_private(n.address) for n in group),
        first.version,
        any(n.rdma for n in group),
        len({n.name for n in group}),
        -min(n.speed for n in group),
        block,
        min(map(_number, group)),
    )


def _number(nic: Nic) -> int:
    return int(ipaddress.ip_address(nic.address))


def _subnet(nic: Nic) -> str:
    return str(ipaddress.ip_network(f"{nic.address}/{nic.prefix}", strict=False))


def _in(address: str, networks: Iterable[Network]) -> bool:
    return any(ipaddress.ip_address(address) in network for network in networks)


def _inventory(node: NodeNet) -> str:
    """Every address and what speaks against it."""
    words = []
    for nic in node.nics:
        if nic.kind == "loopback" or _in(nic.address, _ONE_LINK):
            continue
        why = "down" if not nic.up else "" if _usable(nic, False) else "inside" if is_private(nic.address) else "public"
        words.append(f"{nic.name} {nic.address}/{nic.prefix}{f' ({why})' if why else ''}")
    return ", ".join(words) or "no address"
