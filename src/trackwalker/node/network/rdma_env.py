"""What NCCL and RCCL must be told about this node's RDMA fabric: adapters, GID index, traffic class, DMABUF.

Each variable is decided only when the user has not set it, and every decision comes with a line that says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from trackwalker.node.checks.result import Command, as_root, output
from trackwalker.node.network.rdma_ports import ETHERNET, Gid, Port, gids, has_kernel_files, kernel_release, ports

DATA_TC, FIFO_TC = 104, 192  # of the reference fabric: DSCP 26 for data, 48 for control
DMABUF = "NCCL_DMABUF_ENABLE"

_DSCP_ROW = re.compile(r"^\s*DSCP( bitmap)?\s*:\s*(.+?)\s*==>\s*priority\s*:\s*(\d+)", re.IGNORECASE | re.MULTILINE)
_NO_DROP = re.compile(r"^\s*PFC no-drop priorities\s*:[ \t]*([\d, \t]*)$", re.IGNORECASE | re.MULTILINE)
_STRICT = re.compile(r"^\s*(\d+)\s+strict\b", re.IGNORECASE | re.MULTILINE)
_NIC = re.compile(r"^NIC\s*:", re.MULTILINE)


class UnsafeDmabuf(Exception):
    """The user insists on DMABUF where its probe would crash the ranks; the message says what to do."""


@dataclass
class RdmaEnv:
    """Variables for the ranks of this node, and the lines that explain them."""

    variables: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def rdma_env(
    host: str,
    given: Mapping[str, str],
    user: Collection[str] = (),
    *,
    sysfs: str = "/sys",
    proc: str = "/proc",
    boot: str = "/boot",
    command: Command = output,
) -> RdmaEnv:
    """Decide what `given`, the ranks' environment so far, leaves open. `user` names what the user has set in it."""
    out = RdmaEnv()
    _decide_dmabuf(host, given, user, out, boot, kernel_release(proc))
    found = ports(sysfs)
    chosen = fabric_ports(found)
    if not chosen:
        return out
    if "NCCL_IB_HCA" not in given:
        out.variables["NCCL_IB_HCA"] = hca_list(chosen)
        left = [p.name for p in found if p.active and p not in chosen]
        why = f" (left out: {', '.join(left)})" if left else ""
        out.lines.append(f"[INFO] {host}: NCCL_IB_HCA={out.variables['NCCL_IB_HCA']}{why}")
    if "NCCL_IB_GID_INDEX" not in given:
        _decide_gid(host, chosen, out)
    _decide_traffic_class(host, chosen, given, out, command)
    return out


def fabric_ports(found: list[Port]) -> list[Port]:
    """The ports that carry the collectives: ACTIVE, and the largest group among the fastest. Slower ones are storage
    and management; InfiniBand and Ethernet cannot be mixed in one collective."""
    active = [p for p in found if p.active]
    fastest = max((p.rate for p in active), default=0.0)
    groups: dict[str, list[Port]] = {}
    for port in active:
        if port.rate == fastest:
            groups.setdefault(port.link_layer, []).append(port)
    return max(groups.values(), key=len, default=[])


def hca_list(chosen: list[Port]) -> str:
    """With `=`, names match exactly: without it mlx5_1 would also mean mlx5_10."""
    return "=" + ",".join(p.name for p in chosen)


_TIERS: tuple[tuple[str, Callable[[Gid], bool]], ...] = (
    ("RoCEv2-preferred", lambda gid: gid.routable and gid.v2),
    ("no port has a routable RoCEv2 address", lambda gid: gid.routable),
    ("link-local addresses only: good inside one switch domain", lambda gid: gid.v2),
    ("link-local addresses only, not RoCEv2", lambda gid: True),
)


def gid_index(chosen: list[Port]) -> tuple[int | None, str]:
    """The lowest index that serves every port, and why it is that one; None when no index does.

    The best kind of address that every port has decides. Ports whose first one differs may still share a later one.
    """
    tables = {p.name: gids(p) for p in chosen}
    for why, good in _TIERS:
        sets = {name: {gid.index for gid in table if good(gid)} for name, table in tables.items()}
        if all(sets.values()):
            common = set.intersection(*sets.values())
            if common:
                return min(common), why
            return None, "ports disagree: " + ", ".join(f"{name} has {min(found)}" for name, found in sets.items())
    return None, f"no address on {', '.join(name for name, table in tables.items() if not table)}"


def _decide_gid(host: str, chosen: list[Port], out: RdmaEnv) -> None:
    roce = [p for p in chosen if p.link_layer == ETHERNET]
    if not roce:
        return  # on InfiniBand the index is 0, and NCCL knows that
    index, why = gid_index(roce)
    if index is None:
        out.lines.append(f"[WARN] {host}: NCCL_IB_GID_INDEX is left unset: {why}; set it with _env_NCCL_IB_GID_INDEX=N")
        return
    out.variables["NCCL_IB_GID_INDEX"] = str(index)
    out.lines.append(f"[INFO] {host}: NCCL_IB_GID_INDEX={index} (auto-detected, {why})")


def _decide_traffic_class(
    host: str, chosen: list[Port], given: Mapping[str, str], out: RdmaEnv, command: Command
) -> None:
    """Only Pensando adapters need it: Mellanox and Broadcom fabrics map the default class by themselves."""
    wanted = [name for name in ("NCCL_IB_TC", "NCCL_IB_FIFO_TC") if name not in given]
    if not wanted or not any(p.driver == "ionic" or "ionic" in p.device for p in chosen):
        return
    data, fifo, why = traffic_classes(as_root(command, ["nicctl", "show", "qos"]) or "")
    values = {"NCCL_IB_TC": data, "NCCL_IB_FIFO_TC": fifo}
    out.variables.update({name: str(values[name]) for name in wanted})
    text = " ".join(f"{name}={values[name]}" for name in wanted)
    out.lines.append(f"[INFO] {host}: Pensando AINIC detected: {text} ({why})")


def traffic_classes(text: str) -> tuple[int, int, str]:
    """Traffic class of data and of control messages from `nicctl show qos`, and where they come from.

    The class is 4 x the DSCP that leads to the no-drop priority (data) and to the strictly scheduled one (control).
    """
    blocks = [b for b in _NIC.split(text) if _DSCP_ROW.search(b)]
    if not blocks:
        return DATA_TC, FIFO_TC, "defaults: nicctl gave no QoS table"
    found = [_classes(block) for block in blocks]
    data, fifo, why = found[0]
    if any(other[:2] != (data, fifo) for other in found):
        why += "; the adapters differ: this is the first one's"
    return data, fifo, why


def _classes(block: str) -> tuple[int, int, str]:
    dscps: dict[int, set[int]] = {}
    for bitmap, value, priority in _DSCP_ROW.findall(block):
        dscps.setdefault(int(priority), set()).update(_bits(value) if bitmap else _ranges(value))
    no_drop = _NO_DROP.search(block)
    lossless = [int(n) for n in re.findall(r"\d+", no_drop[1] if no_drop else "")]
    data = next((min(dscps[p]) for p in lossless if dscps.get(p)), None)
    if data is None:
        return DATA_TC, FIFO_TC, "defaults: no DSCP leads to a no-drop priority"
    strict = _STRICT.search(block)
    control = dscps.get(int(strict[1])) if strict else None
    if not control:
        return 4 * data, 4 * data, "from nicctl; no strict priority, so control goes with the data"
    return 4 * data, 4 * min(control), "from nicctl"


def _bits(text: str) -> set[int]:
    try:
        bitmap = int(text, 16)
    except ValueError:
        return set()
    return {n for n in range(64) if bitmap >> n & 1}


def _ranges(text: str) -> set[int]:
    """`0-23, 25` as numbers."""
    out: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:\s*-\s*(\d+))?", text):
        out.update(n for n in range(int(first), int(last or first) + 1) if n < 64)
    return out


def _decide_dmabuf(
    host: str, given: Mapping[str, str], user: Collection[str], out: RdmaEnv, boot: str, release: str
) -> None:
    """Without the kernel's files in /boot the DMABUF probe crashes every rank: it stays off, or nothing starts."""
    value = given.get(DMABUF, "").strip()
    if value in ("", "0") or has_kernel_files(boot, release):
        return
    if DMABUF in user:
        raise UnsafeDmabuf(
            f"[ERROR] Unsafe {DMABUF}={value}: missing /boot kernel metadata for '{release}'."
            f" Mount the host's /boot read-only into the container, or leave {DMABUF} out."
        )
    out.variables[DMABUF] = "0"
    out.lines.append(f"[WARN] {host}: Forcing {DMABUF}=0: missing /boot kernel metadata for '{release}'")
