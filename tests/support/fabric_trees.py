"""Networks as sysfs and the vendors' tools show them: RDMA adapters with GID tables, links, `nicctl` texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sysfs_trees import adapter, link, put

V1, V2 = "IB/RoCE v1", "RoCE v2"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:0690:81ff:fe30:a7a0"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a01:0007"  # ::ffff:10.1.0.7
ULA = "fd00:0000:0000:0001:0000:0000:0000:0007"
GLOBAL = "2001:0db8:0000:0000:0000:0000:0000:0007"
Table = Mapping[int, "tuple[str, str | None]"]  # slot: GID and type; None: a driver that has no file for the type

# What mlx5 and bnxt_re fill in for a port with an IPv4 address: each address twice, once for each version.
USUAL: Table = {0: (LOCAL, V1), 1: (LOCAL, V2), 2: (MAPPED, V1), 3: (MAPPED, V2)}
IONIC: Table = {0: (LOCAL, V2), 1: (MAPPED, V2)}  # ionic speaks v2 only


def rdma(
    root: Path,
    number: int,
    kind: str = "mlx5",
    table: Table = USUAL,
    *,
    state: str = "4: ACTIVE",
    rate: str = "400 Gb/sec (4X NDR)",
    model: str = "0x1021",
    slots: int = 16,
    ports: int = 1,
) -> Path:
    """An adapter as tests/support/sysfs_trees.py makes it, with a GID table of `slots` slots on every port."""
    device = adapter(root, number, kind, ports=ports)
    put(device / "device", {"vendor": "0x15b3", "device": model})
    for port in range(1, ports + 1):
        folder = device / "ports" / str(port)
        put(folder, {"state": state, "rate": rate})
        for slot in range(slots):
            gid, version = table.get(slot, (EMPTY, None))
            put(folder / "gids", {str(slot): gid})
            if version is not None:  # reading the type of an empty slot fails: to us it is as if there were none
                put(folder / "gid_attrs" / "types", {str(slot): version})
    return device


def netdev(root: Path, name: str, *, state: str = "up", speed: int | None = None, kind: str = "physical") -> Path:
    """A network device; kind physical, bond, bridge, vlan, loopback or virtual."""
    folder = root / "devices" / ("pci0000:00" if kind == "physical" else "virtual") / "net" / name
    put(folder, {"operstate": state, "flags": "0x1003" if state in ("up", "unknown") else "0x1002"})
    put(folder, {"type": 772 if kind == "loopback" else 1, "uevent": f"INTERFACE={name}"})
    if speed is not None:
        put(folder, {"speed": speed})
    if kind == "physical":
        card = root / "devices" / "pci0000:00" / f"card-{name}"
        card.mkdir(parents=True)
        link(folder / "device", card)
    elif kind in ("bond", "bridge"):
        (folder / {"bond": "bonding", "bridge": "bridge"}[kind]).mkdir()
    elif kind == "vlan":
        put(folder, {"uevent": f"DEVTYPE=vlan\nINTERFACE={name}"})
    link(root / "class" / "net" / name, folder)
    return folder


def kfd_process(root: Path, pid: int, *, vram: int = 0, queues: int = 0) -> None:
    """A process in the KFD's tree: memory by GPU, and its queues."""
    folder = root / "class" / "kfd" / "kfd" / "proc" / str(pid)
    put(folder, {"pasid": 32770 + pid % 100, "vram_51140": vram, "vram_2987": 0, "sdma_51140": 0, "sdma_2987": 0})
    (folder / "queues").mkdir()
    for queue in range(queues):
        put(folder / "queues" / str(queue), {"gpuid": 51140, "size": 8192, "type": 0})


def kfd_nodes(root: Path, gpus: int, cpus: int = 2) -> None:
    """The KFD's topology: CPUs first, then every GPU (or partition of one)."""
    for node in range(cpus + gpus):
        put(root / "class/kfd/kfd/topology/nodes" / str(node), {"gpu_id": 0 if node < cpus else 4000 + 13 * node})


def qos(
    rows: tuple[str, ...] = ("DSCP : 0-23, 25-45, 47-63 ==> priority : 0", "DSCP : 24 ==> priority : 3",
                             "DSCP : 46 ==> priority : 6"),
    no_drop: str = "3",
    schedule: tuple[str, ...] = ("0         DWRR        1         N/A", "3         DWRR        99        N/A",
                                 "6         strict      N/A       10"),
    nics: int = 2,
) -> str:  # fmt: skip
    """`nicctl show qos` for a few adapters, in the layout that AMD documents."""
    lines = []
    for nic in range(nics):
        lines += [
            f"NIC  : 42424650-4c32-3531-3230-30344300000{nic} (0000:{0x10 + nic:02x}:00.0)",
            "",
            f"Port : 04908130-a7a{nic}-4242-4242-000011010000",
            "",
            "  Classification type         : DSCP",
            "",
            "  DSCP-to-priority :",
            *(f"    {row}" for row in rows),
            "",
            "  PFC :",
            "    PFC priority bitmap       : 0x8",
            f"    PFC no-drop priorities    : {no_drop}".rstrip(),
            "",
            "  Scheduling :",
            "    --------------------------------------------",
            "    Priority  Scheduling  Bandwidth Rate-limit",
            "              Type        (in %age) (in Gbps)",
            "    --------------------------------------------",
            *(f"    {row}" for row in schedule),
            "",
        ]
    return "\n".join(lines)


def dcqcn(enabled: int, disabled: int = 0) -> str:
    """`nicctl show dcqcn`: one block for each RoCE device."""
    blocks = []
    for number in range(enabled + disabled):
        blocks.append(
            f"NIC : 42424650-4c32-3531-3230-30344300000{number} (0000:{0x10 + number:02x}:00.0)\n"
            + "-" * 90
            + f"\n\nLif id                                     : 43000070-0100-0000-4242-04908130a7a{number}"
            f"\nROCE device                                : ionic_{number}"
            "\n  DCQCN profile id                         : 1"
            f"\n  Status                                   : {'Enabled' if number < enabled else 'Disabled'}"
            "\n  Token bucket size                        : 800000"
            "\n  DSCP value used for CNP                  : 46\n"
        )
    return "\n".join(blocks)
