"""GPU and fabric checks on trees as the drivers write them, on the stand-in NVML, and on the tools' texts."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fabric_trees import IONIC, dcqcn, kfd_nodes, kfd_process, netdev, rdma
from nvml_driver import LOST, NOT_SUPPORTED, Driver, built, driver  # noqa: F401 - fixtures
from sysfs_trees import mi250, mi300x, put

from trackwalker.node.checks import fabric, gpu
from trackwalker.node.checks.result import Context, Result
from trackwalker.node.stages.stage_work import hold_port

NO_NVML = "none.so"


def amd(root: Path, gpus: int | None = None) -> Context:
    return Context("n1", gpus=gpus, sys=str(root), proc=str(root / "proc"), nvml=NO_NVML)


def clean(cards: list[Path]) -> None:
    """No errors: what a healthy MI300X shows."""
    for card in cards:
        for file in (card / "ras").glob("*aca_*"):
            file.write_text("ue: 0\nce: 0\nde: 0\n")
        for file in (card / "ras").glob("*_err_count"):
            file.write_text("ue: 0\nce: 0\n")
        (card / "ras" / "gpu_vram_bad_pages").write_text("")


def test_as_many_gpus_as_expected(tmp_path: Path) -> None:
    assert gpu.present(amd(tmp_path)).status == "skip"
    assert gpu.present(amd(tmp_path, 8)).status == "fail"  # a driver that is not loaded
    mi300x(tmp_path, 8)
    assert gpu.present(amd(tmp_path, 8)).text == "8 GPUs"
    assert gpu.present(amd(tmp_path, 4)).status == "pass"  # the job takes part of the node
    (tmp_path / "class/hwmon/hwmon5").unlink()  # one fell off the bus
    found = gpu.present(amd(tmp_path, 8))
    assert (found.status, found.text) == ("fail", "7 GPUs (expected 8)")


def test_gpus_as_programs_will_see_them(tmp_path: Path) -> None:
    mi300x(tmp_path, 2)
    kfd_nodes(tmp_path, 16)  # both cards divided into eight partitions
    assert gpu.present(amd(tmp_path, 16)).text == "16 GPUs"
    found = gpu.present(amd(tmp_path, 17))
    assert (found.status, found.data["amd_cards"]) == ("fail", 2)


def test_who_holds_an_amd_gpu(tmp_path: Path) -> None:
    mi250(tmp_path)
    assert gpu.free(amd(tmp_path)).status == "pass"
    kfd_process(tmp_path, 811)  # a monitor: neither memory nor queues
    assert gpu.free(amd(tmp_path)).status == "pass"
    kfd_process(tmp_path, 4242, vram=17 << 30, queues=4)
    kfd_process(tmp_path, 4343, queues=1)
    put(tmp_path / "proc/4242", {"comm": "python3", "status": "Name:\tpython3\nState:\tZ (zombie)"})
    found = gpu.free(amd(tmp_path, 2))
    assert found.status == "fail"
    assert found.text == "held by pid 4242 python3 (zombie: its parent must reap it), pid 4343 (not visible from here)"
    assert found.data["processes"][0]["vram_bytes"] == 17 << 30
    shared = gpu.free(amd(tmp_path, 1))  # we asked for one of two: they may belong to the other
    assert (shared.status, "1 of 2 GPUs" in shared.text) == ("warn", True)


def test_ras_gate(tmp_path: Path) -> None:
    cards = mi300x(tmp_path, 2)
    clean(cards)
    assert gpu.errors(amd(tmp_path)).text == "no uncorrected errors"
    put(cards[0], {"ras/aca_umc": "ue: 0\nce: 7\nde: 0"})
    assert (gpu.errors(amd(tmp_path)).status, gpu.errors(amd(tmp_path)).text) == (
        "pass",
        "no uncorrected errors, 7 corrected",
    )
    put(cards[1], {"ras/aca_gfx": "ue: 2\nce: 0\nde: 0"})
    found = gpu.errors(amd(tmp_path))
    assert (found.status, found.text) == ("fail", "0000:15:00.0 UE=2 in gfx")
    clean(cards)
    put(cards[1], {"ras/gpu_vram_bad_pages": b"0x00000001 : 0x00001000 : R\n"})  # retired long ago: no longer used
    assert gpu.errors(amd(tmp_path)).status == "pass"
    put(cards[1], {"ras/gpu_vram_bad_pages": b"0x00000001 : 0x00001000 : P\n0x00000002 : 0x00001000 : F\n"})
    found = gpu.errors(amd(tmp_path))
    assert "1 bad HBM page wait for a reset" in found.text
    assert "1 bad HBM page could not be retired" in found.text


def test_ras_of_older_cards(tmp_path: Path) -> None:
    cards = mi250(tmp_path)
    clean(cards)
    assert gpu.errors(amd(tmp_path)).status == "pass"
    put(cards[0], {"ras/umc_err_count": "ue: 1\nce: 0"})
    assert gpu.errors(amd(tmp_path)).text == "0000:31:00.0 UE=1 in umc"


def test_versions_differ_inside_a_node(tmp_path: Path) -> None:
    cards = mi300x(tmp_path, 2)
    put(tmp_path, {"module/amdgpu/version": "6.12.12", "proc/sys/kernel/osrelease": "6.8.0-60-generic"})
    for card in cards:
        put(card / "fw_version", {"smc_fw_version": "0x00557700", "vcn_fw_version": "0x0911800b"})
    rdma(tmp_path, 0)
    found = gpu.versions(amd(tmp_path))
    assert (found.status, found.text) == ("pass", "kernel 6.8.0-60-generic, amdgpu 6.12.12")
    assert found.data["firmware"] == ["smc 0x00557700", "vbios 113-M3000100-102", "vcn 0x0911800b"]
    assert found.data["nic_firmware"] == ["28.39.1002"]
    put(cards[1] / "fw_version", {"smc_fw_version": "0x00557600"})
    found = gpu.versions(amd(tmp_path))
    assert (found.status, "GPUs differ in smc" in found.text) == ("fail", True)


@pytest.fixture
def nvidia(driver: Driver, tmp_path: Path) -> Context:  # noqa: F811 - the fixture
    for key in ("ecctotal.1.0", "ecctotal.0.0", "ecctotal.1.1", "rowpending", "processes"):
        driver.value(key, 0)
    return Context("n1", gpus=2, sys=str(tmp_path), proc=str(tmp_path), nvml=str(driver.path))


@pytest.mark.starts_processes
def test_nvidia_node_that_is_well(nvidia: Context, driver: Driver) -> None:  # noqa: F811
    assert [check.run(nvidia).status for check in gpu.CHECKS[:3]] == ["pass"] * 3
    found = gpu.versions(nvidia)
    assert found.text == "kernel , nvidia 580.1.2; GPUs differ in vbios"  # the stand-in's do
    assert found.data["odd"] == {"GPU 0": {"vbios": "96.00.00"}, "GPU 1": {"vbios": "96.00.01"}}
    driver.value("ecctotal.1.1", 9)  # errors of the card's earlier life, mended by remapping since
    assert gpu.errors(nvidia).status == "pass"


@pytest.mark.starts_processes
def test_nvidia_gates(nvidia: Context, driver: Driver) -> None:  # noqa: F811
    driver.value("ecctotal.1.0", 3, gpu=1)
    driver.value("rowpending", 1, gpu=0)
    found = gpu.errors(nvidia)
    assert (found.status, found.text) == ("fail", "GPU 0 row remapping pending: a reset is due; GPU 1 UE=3")
    driver.value("processes", 1, gpu=1)
    assert gpu.free(nvidia).text == "held by pid 1000 (not visible from here)"


@pytest.mark.starts_processes
def test_a_lost_nvidia_gpu_is_named_once(nvidia: Context, driver: Driver) -> None:  # noqa: F811
    driver.fail("nvmlDeviceGetHandleByIndex_v2", LOST, gpu=1)
    found = gpu.present(nvidia)
    assert (found.status, found.text) == ("fail", "2 GPUs, lost: GPU 1: gpu_is_lost")
    assert [gpu.free(nvidia).status, gpu.errors(nvidia).status] == ["pass", "pass"]


@pytest.mark.starts_processes
def test_cards_without_ecc_have_nothing_to_tell(nvidia: Context, driver: Driver) -> None:  # noqa: F811
    driver.fail("nvmlDeviceGetTotalEccErrors", NOT_SUPPORTED)
    driver.fail("nvmlDeviceGetRemappedRows", NOT_SUPPORTED)
    assert gpu.errors(nvidia).status == "skip"


def net(root: Path, answers: dict[str, str | None] | None = None, nodes: int = 2) -> Context:
    def command(argv: Sequence[str]) -> str | None:
        return (answers or {}).get(" ".join(argv))

    return Context("n1", nodes=nodes, sys=str(root), proc=str(root), command=command)


def test_links(tmp_path: Path) -> None:
    assert fabric.nics(net(tmp_path)).status == "skip"
    netdev(tmp_path, "lo", state="unknown", kind="loopback")
    netdev(tmp_path, "docker0", kind="bridge")
    netdev(tmp_path, "ens2", state="down", speed=-1)
    assert fabric.nics(net(tmp_path)).status == "fail"
    netdev(tmp_path, "ens1", speed=25_000)
    found = fabric.nics(net(tmp_path))
    assert (found.status, found.data) == ("pass", {"up": {"ens1": 25_000}, "down": ["ens2"]})


def test_rdma_ports(tmp_path: Path) -> None:
    assert fabric.rdma(net(tmp_path)).status == "skip"
    for number in range(3):
        rdma(tmp_path, number)
    rdma(tmp_path, 9, "bnxt_en", rate="25 Gb/sec (1X EDR)", model="0x1751")  # management: another make, another speed
    assert fabric.rdma(net(tmp_path)).text == "4 ACTIVE"
    rdma(tmp_path, 3, rate="200 Gb/sec (4X HDR)")
    rdma(tmp_path, 4, state="1: DOWN")
    rdma(tmp_path, 8, "ionic", state="1: DOWN", model="0x1002")  # nobody uses this make here
    found = fabric.rdma(net(tmp_path))
    assert found.status == "warn"
    assert found.text == "5 ACTIVE; mlx5_3 runs at 200 of 400 Gb/s; mlx5_4 is not ACTIVE"
    rdma(tmp_path, 5, rate="200 Gb/sec (4X HDR)")  # two of that speed: a storage network
    assert fabric.rdma(net(tmp_path)).text == "6 ACTIVE; mlx5_4 is not ACTIVE"


def test_no_active_rdma_port_ends_a_job_of_several_nodes(tmp_path: Path) -> None:
    rdma(tmp_path, 0, state="1: DOWN")
    assert fabric.rdma(net(tmp_path)).status == "fail"
    assert fabric.rdma(net(tmp_path, nodes=1)).status == "warn"


def rules(count: int) -> str:
    fixed = "0:\tfrom all lookup local\n32766:\tfrom all lookup main\n"
    return fixed + "".join(f"3276{n}:\tfrom fd93:16d3:59b6:{n}::/64 lookup 10{n}\n" for n in range(count))


@pytest.mark.parametrize(("count", "status"), [(0, "skip"), (7, "fail"), (8, "pass"), (9, "fail")])
def test_ipv6_rules(tmp_path: Path, count: int, status: str) -> None:
    found = fabric.ipv6_rules(net(tmp_path, {"ip -6 rule": rules(count)}))
    assert found.status == status
    if status == "fail":
        assert found.text == f"{count} (expected 8)"
    assert fabric.ipv6_rules(net(tmp_path, {"ip -6 rule": rules(count)}, nodes=1)).text == "single-node job"


def test_ipv6_rules_by_the_adapters_that_are_there(tmp_path: Path) -> None:
    for number in range(4):
        rdma(tmp_path, number, "ionic", IONIC)
    assert fabric.ipv6_rules(net(tmp_path, {"ip -6 rule": rules(4)})).status == "pass"
    assert fabric.ipv6_rules(net(tmp_path)).status == "skip"  # no `ip` here


def test_the_coordinator_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fabric.reach(net(tmp_path)).status == "skip"  # before there is a plan
    with hold_port("coordinator") as held:
        there = replace(net(tmp_path), meeting=("127.0.0.1", int(held.getsockname()[1])))
        assert fabric.reach(there).status == "pass"
    monkeypatch.setattr(fabric, "REACH_S", 0.2)
    with socket.socket() as deaf, contextlib.ExitStack() as waiting:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(4):  # its queue is full: to newcomers it says nothing, like a firewall that drops
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        found = fabric.reach(replace(there, meeting=deaf.getsockname()))
    assert (found.status, found.text.endswith(": timed out")) == ("fail", True)


def test_congestion_control(tmp_path: Path) -> None:
    def run(text: str | None, how: str = "nicctl show dcqcn") -> Result:
        return fabric.dcqcn(net(tmp_path, {how: text}))

    assert run(dcqcn(8)).text == "no Pensando adapters"
    for number in range(8):
        rdma(tmp_path, number, "ionic", IONIC)
    assert (run(dcqcn(8)).status, run(dcqcn(8)).text) == ("pass", "8")
    assert run(dcqcn(8), "sudo -n nicctl show dcqcn").status == "pass"
    assert (run(dcqcn(5, 3)).status, run(dcqcn(5, 3)).text) == ("fail", "5 enabled (expected 8)")
    assert run(None).status == "skip"
