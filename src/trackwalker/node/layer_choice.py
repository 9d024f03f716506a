"""Which layers of the environment hold on this node: that of its GPUs, that of its network.

The submitting machine often has neither, so the order carries the environment for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trackwalker.node.rdma_ports import Port

_DRIVERS = ("ionic", "mlx5", "bnxt", "efa")
SOCKETS = "tcp"


def fabric_of(ports: Iterable[Port]) -> str:
    """The fabric that these ports belong to; sockets where there is none that we know."""
    names = [port.driver or port.device for port in ports]
    return next((known for known in _DRIVERS if any(name.startswith(known) for name in names)), SOCKETS)


def choose(layers: Mapping[str, Mapping[str, str]], vendor: str, fabric: str) -> tuple[dict[str, str], str]:
    """The environment for a vendor and a fabric, and its name; nothing where the order has none for them."""
    for name in (f"{vendor}/{fabric}", f"{vendor}/{SOCKETS}"):
        if name in layers:
            return dict(layers[name]), name
    return {}, ""
