"""Who is who: node, ranks, and the GPU of each rank where that is known and not guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from sysfs_trees import mi300x, put, samples, series

from trackwalker.node.collectors.gpu_amd import AmdGpuCollector
from trackwalker.node.collectors.identity import METRICS, IdentityCollector, Place, gpus_of_ranks, in_runtime_order
from trackwalker.node.exporter.server import Exporter

GPUS = [{"gpu": str(n), "uuid": f"GPU-{'abcd'[n]}{n}", "pci": f"0000:{n}5:00.0"} for n in range(4)]


GPUS[1]["mig"] = "MIG-x,MIG-y"


def places(*envs: dict[str, str]) -> list[Place]:
    return [Place(8 + n, f"box-r{8 + n}", 100 + n, env) for n, env in enumerate(envs)]


@pytest.mark.parametrize(
    ("envs", "expected", "known_by"),
    [
        ([{}], {8: "0123"}, "only rank"),
        ([{"CUDA_VISIBLE_DEVICES": "2"}], {8: "2"}, "visible devices"),
        ([{"CUDA_VISIBLE_DEVICES": "3,1"}, {"CUDA_VISIBLE_DEVICES": "0"}], {8: "31", 9: "0"}, "visible devices"),
        ([{"CUDA_VISIBLE_DEVICES": "GPU-c2,GPU-a"}], {8: "20"}, "visible devices"),
        ([{"CUDA_VISIBLE_DEVICES": "1,-1,2"}], {8: "1"}, "visible devices"),
        ([{"CUDA_VISIBLE_DEVICES": ""}], {}, ""),
        ([{"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}], {8: "3"}, "visible devices"),
        ([{"ROCR_VISIBLE_DEVICES": "GPU-d3"}], {8: "3"}, "visible devices"),
        ([{"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "1"}], {8: "3"}, "visible devices"),
        ([{"NVIDIA_VISIBLE_DEVICES": "all"}], {8: "0123"}, "only rank"),
        ([{"CUDA_VISIBLE_DEVICES": "MIG-x"}, {"CUDA_VISIBLE_DEVICES": "MIG-y"}], {8: "1", 9: "1"}, "visible devices"),
        ([{"CUDA_VISIBLE_DEVICES": "MIG-GPU-c2/1/0"}], {8: "2"}, "visible devices"),
        ([{}] * 4, {8: "0", 9: "1", 10: "2", 11: "3"}, "local order"),
        ([{"HIP_VISIBLE_DEVICES": "3,2"}] * 2, {8: "3", 9: "2"}, "local order"),
        ([{}] * 2, {}, ""),  # two ranks, four GPUs, and nobody says: no guess
        ([{"CUDA_VISIBLE_DEVICES": "1"}, {}], {8: "1"}, "visible devices"),
    ],
)
def test_the_gpus_of_ranks(envs: list[dict[str, str]], expected: dict[int, str], known_by: str) -> None:
    found: dict[int, str] = {}
    for place, gpu, why in gpus_of_ranks(places(*envs), GPUS):
        found[place.rank] = found.get(place.rank, "") + gpu["gpu"]
        assert why == known_by
    assert found == expected


def test_a_rank_on_a_slice_has_the_slice_and_its_gpu() -> None:
    ranks = places({"CUDA_VISIBLE_DEVICES": "MIG-x"}, {"CUDA_VISIBLE_DEVICES": "MIG-y"})
    got = IdentityCollector("n1", ranks, lambda: list(GPUS)).collect()
    told = {(at["rank"], at["gpu"]) for f in got if f.name == "hw_gpu_rank_info" for at, _, _ in f.samples}
    assert told == {("8", "1"), ("8", "1:0"), ("9", "1"), ("9", "1:1")}


def test_an_amd_node_says_who_is_who(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    put(tmp_path / "module/amdgpu", {"version": "6.12.12"})
    exporter = Exporter("n1", [AmdGpuCollector("n1", str(tmp_path))])
    exporter.families()
    ranks = places({}, {})
    identity = IdentityCollector("n1", ranks, lambda: exporter.labels("hw_gpu_info"), str(tmp_path))
    got = samples(identity.collect())
    ((_, node),) = [key for key in got if key[0] == "hw_node_info"]
    about = dict(node)
    assert about.pop("kernel")
    assert about == {
        "host": "n1", "gpus": "2", "gpu_model": "AMD Instinct MI300X OAM", "driver": "6.12.12",
        "firmware": "113-M3000100-102",
    }  # fmt: skip
    assert got[series("hw_rank_info", host="box-r9", rank="9", local_rank="1", node="n1", pid="101")] == 1
    assert got[series("hw_gpu_rank_info", gpu="1", rank="9", lane="box-r9", known_by="local order")] == 1
    assert {name for name, _ in got} == set(METRICS) - {"hw_agent_info"}
    assert set(got.values()) == {1}


def test_amd_gpus_are_numbered_for_ranks_as_the_runtime_does(tmp_path: Path) -> None:
    nodes = tmp_path / "class/kfd/kfd/topology/nodes"
    put(nodes, {"0/properties": "cpu_cores_count 96\nsimd_count 0\nlocation_id 0\ndomain 0"})
    for number, bus in ((2, 0x35), (3, 0x05), (10, 0x15)):  # a text sort would put 10 before 2
        put(nodes, {f"{number}/properties": f"simd_count 304\nlocation_id {bus << 8}\ndomain 0"})
    assert [g["gpu"] for g in in_runtime_order(GPUS, str(tmp_path))] == ["3", "0", "1", "2"]
    assert in_runtime_order(GPUS, str(tmp_path / "none")) == GPUS


def test_without_gpus_there_is_still_a_node_and_its_ranks() -> None:
    got = samples(IdentityCollector("n1", places({}), list).collect())
    assert {name for name, _ in got} == {"hw_node_info", "hw_rank_info"}
