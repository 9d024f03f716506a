"""Adapters, GID index, traffic class and DMABUF, decided from trees and texts as the drivers and tools write them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from fabric_trees import GLOBAL, IONIC, LOCAL, MAPPED, ULA, USUAL, V1, V2, Table, qos, rdma

from trackwalker.node.network.rdma_env import UnsafeDmabuf, gid_index, rdma_env, traffic_classes
from trackwalker.node.network.rdma_ports import ports


def nothing(argv: Sequence[str]) -> str | None:
    return None


def hca(root: Path) -> str:
    return rdma_env("n1", {}, sysfs=str(root), command=nothing).variables["NCCL_IB_HCA"]


def test_active_ports_by_exact_name_in_natural_order(tmp_path: Path) -> None:
    for number in (0, 2, 10, 11):
        rdma(tmp_path, number, state="1: DOWN" if number == 11 else "4: ACTIVE")
    assert hca(tmp_path) == "=mlx5_0,mlx5_2,mlx5_10"


def test_slower_adapters_are_storage_or_management(tmp_path: Path) -> None:
    for number in range(4):
        rdma(tmp_path, number)
    rdma(tmp_path, 4, rate="200 Gb/sec (4X HDR)")
    rdma(tmp_path, 5, "bnxt_en", rate="25 Gb/sec (1X EDR)")
    found = rdma_env("n1", {}, sysfs=str(tmp_path), command=nothing)
    assert found.variables["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"
    assert "left out: bnxt_re5, mlx5_4" in found.lines[0]


def test_ethernet_and_infiniband_are_not_mixed(tmp_path: Path) -> None:
    for number in range(2):
        rdma(tmp_path, number)
    for number in range(2, 6):
        rdma(tmp_path, number, "ib")
    found = rdma_env("n1", {}, sysfs=str(tmp_path), command=nothing)
    assert found.variables == {"NCCL_IB_HCA": "=mlx4_2,mlx4_3,mlx4_4,mlx4_5"}  # and on InfiniBand no GID index


def test_a_port_is_named_where_the_adapter_has_several(tmp_path: Path) -> None:
    device = rdma(tmp_path, 0, ports=2)
    (device / "ports" / "2" / "state").write_text("1: DOWN\n")
    assert hca(tmp_path) == "=mlx5_0:1"


def test_without_adapters_nothing_is_set(tmp_path: Path) -> None:
    assert rdma_env("n1", {}, sysfs=str(tmp_path), command=nothing).variables == {}
    rdma(tmp_path, 0, state="1: DOWN")
    assert rdma_env("n1", {}, sysfs=str(tmp_path), command=nothing).variables == {}


def test_r27_what_the_user_set_is_left_alone(tmp_path: Path) -> None:
    rdma(tmp_path, 0, "ionic", IONIC)
    given = {"NCCL_IB_HCA": "mlx5", "NCCL_IB_GID_INDEX": "7", "NCCL_IB_TC": "4", "NCCL_IB_FIFO_TC": ""}
    asked = []
    found = rdma_env("n1", given, sysfs=str(tmp_path), command=lambda argv: asked.append(argv))
    assert found.variables == {}
    assert asked == []
    del given["NCCL_IB_FIFO_TC"]
    assert rdma_env("n1", given, sysfs=str(tmp_path), command=nothing).variables == {"NCCL_IB_FIFO_TC": "192"}


@pytest.mark.parametrize(
    ("table", "index"),
    [
        (USUAL, 3),  # IPv4-mapped, which starts with zeros like an empty slot
        (IONIC, 1),
        ({0: (ULA, V2)}, 0),
        ({0: (GLOBAL, V1), 1: (GLOBAL, V2)}, 1),
        ({0: (LOCAL, V2), 1: (LOCAL, V1), 4: (ULA, V2)}, 4),  # link-local first
        ({2: (MAPPED, V1), 10: (MAPPED, V2), 11: (ULA, V2)}, 10),  # as text, 10 comes before 2
        ({0: (LOCAL, V2), 2: (MAPPED, V1)}, 2),  # routable v1 before link-local v2
        ({0: (LOCAL, None), 5: (MAPPED, None)}, 5),  # no type files
        ({0: (LOCAL, V1), 1: (LOCAL, V2)}, 1),  # nothing but link-local
    ],
)
def test_r28_gid_index(tmp_path: Path, table: Table, index: int) -> None:
    for number in range(2):
        rdma(tmp_path, number, table=table)
    assert gid_index(ports(str(tmp_path)))[0] == index


def test_r28_inactive_ports_have_no_say(tmp_path: Path) -> None:
    rdma(tmp_path, 0)
    rdma(tmp_path, 1, table={7: (MAPPED, V2)}, state="1: DOWN")
    found = rdma_env("n1", {}, sysfs=str(tmp_path), command=nothing)
    assert found.variables["NCCL_IB_GID_INDEX"] == "3"
    assert "[INFO] n1: NCCL_IB_GID_INDEX=3 (auto-detected, RoCEv2-preferred)" in found.lines


def test_r28_ports_that_differ_may_share_a_later_slot(tmp_path: Path) -> None:
    rdma(tmp_path, 0, table={3: (MAPPED, V2), 5: (ULA, V2)})
    rdma(tmp_path, 1, table={4: (MAPPED, V2), 5: (ULA, V2)})
    assert gid_index(ports(str(tmp_path)))[0] == 5


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({3: (MAPPED, V2)}, {5: (MAPPED, V2)}, "ports disagree: mlx5_0 has 3, mlx5_1 has 5"),
        # Not even when both have a v1 address in one slot: that would slow down, or cut off, what v2 reaches.
        ({2: (MAPPED, V1), 3: (MAPPED, V2)}, {2: (MAPPED, V1), 5: (MAPPED, V2)}, "ports disagree"),
        ({3: (MAPPED, V2)}, {}, "no address on mlx5_1"),
    ],
)
def test_r28_disagreeing_ports_leave_it_unset_with_a_warning(
    tmp_path: Path, first: Table, second: Table, why: str
) -> None:
    rdma(tmp_path, 0, table=first)
    rdma(tmp_path, 1, table=second)
    found = rdma_env("n1", {}, sysfs=str(tmp_path), command=nothing)
    assert "NCCL_IB_GID_INDEX" not in found.variables
    warning = next(text for text in found.lines if "[WARN]" in text)
    assert why in warning
    assert "_env_NCCL_IB_GID_INDEX" in warning


SINGLES = ("DSCP : 24 ==> priority : 3", "DSCP : 46 ==> priority : 6")
BITMAPS = (
    "DSCP bitmap               : 0xffffbffffeffffff ==> priority : 0",
    "DSCP bitmap               : 0x0000000001000000 ==> priority : 3",
    "DSCP bitmap               : 0x0000400000000000 ==> priority : 6",
)
NO_STRICT = ("0         DWRR        1         N/A", "3         DWRR        99        N/A")


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        (qos(), (96, 184)),
        (qos(rows=BITMAPS), (96, 184)),  # bitmap rows alone
        (qos(rows=(*BITMAPS, *SINGLES)), (96, 184)),  # both, as current versions print them
        (qos(rows=("DSCP : 24-31 ==> priority : 3", "DSCP : 46, 48 ==> priority : 6")), (96, 184)),  # ranges
        (qos(no_drop="0,3"), (0, 184)),  # the first no-drop priority
        (qos(no_drop="5, 3"), (96, 184)),  # one that no DSCP leads to
        (qos(schedule=NO_STRICT), (96, 96)),  # no strict row: control goes with the data
        (qos(no_drop=""), (104, 192)),  # PFC is off
        (qos(rows=()), (104, 192)),
        ("", (104, 192)),
        ("Error: unable to open device\n", (104, 192)),
    ],
)
def test_r29_traffic_classes(text: str, classes: tuple[int, int]) -> None:
    assert traffic_classes(text)[:2] == classes


def test_r29_adapters_that_differ_are_told() -> None:
    both = qos(nics=1) + "\n" + qos(rows=("DSCP : 26 ==> priority : 3",), nics=1)
    data, _, why = traffic_classes(both)
    assert data == 96
    assert "differ" in why


def script(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.starts_processes
def test_r29_nicctl_by_sudo_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "qos.txt").write_text(qos())
    script(tools, "nicctl", f'[ "$AS_ROOT" = 1 ] && [ "$1 $2" = "show qos" ] && exec cat {tools}/qos.txt; exit 1')
    script(tools, "sudo", '[ "$1" = -n ] || exit 9; shift; AS_ROOT=1 exec "$@"')
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    rdma(tmp_path, 0, "ionic", IONIC)
    found = rdma_env("n1", {}, sysfs=str(tmp_path))
    assert (found.variables["NCCL_IB_TC"], found.variables["NCCL_IB_FIFO_TC"]) == ("96", "184")
    script(tools, "sudo", "exit 1")  # it would ask for a password
    assert rdma_env("n1", {}, sysfs=str(tmp_path)).variables["NCCL_IB_TC"] == "104"


@pytest.mark.parametrize("kind", ["mlx5", "bnxt_en", "ib"])
def test_r29_other_makes_keep_their_traffic_class(tmp_path: Path, kind: str) -> None:
    rdma(tmp_path, 0, kind)
    asked = []
    found = rdma_env("n1", {}, sysfs=str(tmp_path), command=lambda argv: asked.append(argv))
    assert asked == []
    assert not [name for name in found.variables if name.endswith("TC")]


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0-60-generic\n")
    (tmp_path / "boot").mkdir()
    return {"sysfs": str(tmp_path), "proc": str(tmp_path / "proc"), "boot": str(tmp_path / "boot")}


def test_r34_missing_boot_metadata_disables_dmabuf(machine: dict[str, str]) -> None:
    found = rdma_env("n1", {"NCCL_DMABUF_ENABLE": "1"}, **machine)
    assert found.variables == {"NCCL_DMABUF_ENABLE": "0"}
    assert "Forcing NCCL_DMABUF_ENABLE=0" in found.lines[0]
    assert rdma_env("n1", {}, **machine).variables == {}
    assert rdma_env("n1", {"NCCL_DMABUF_ENABLE": "0"}, {"NCCL_DMABUF_ENABLE"}, **machine).variables == {}


def test_r34_another_kernels_files_do_not_count(machine: dict[str, str]) -> None:
    boot = Path(machine["boot"])
    (boot / "config-6.8.0-45-generic").write_text("")
    assert rdma_env("n1", {"NCCL_DMABUF_ENABLE": "1"}, **machine).variables == {"NCCL_DMABUF_ENABLE": "0"}
    (boot / "config-6.8.0-60-generic").write_text("")
    assert rdma_env("n1", {"NCCL_DMABUF_ENABLE": "1"}, {"NCCL_DMABUF_ENABLE"}, **machine).variables == {}


def test_r34_an_explicit_1_fails_fast(machine: dict[str, str]) -> None:
    with pytest.raises(UnsafeDmabuf, match="Unsafe NCCL_DMABUF_ENABLE=1: missing /boot kernel"):
        rdma_env("n1", {"NCCL_DMABUF_ENABLE": "1"}, {"NCCL_DMABUF_ENABLE"}, **machine)
