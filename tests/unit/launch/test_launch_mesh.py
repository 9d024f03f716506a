"""The mesh: filling, products, and what can be cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackwalker.launch.request.effective import Effective
from trackwalker.launch.request.mesh import Mesh, build_mesh, cuts


def mesh_of(nodes: int = 1, gpus: int = 8, **axes: Any) -> tuple[Mesh | None, list[str]]:
    return build_mesh(Effective({f"{k}_parallelism": v for k, v in axes.items()}), nodes, gpus)


def cut(nodes: int = 1, axes: dict[str, Any] | None = None, **config: Any) -> list[str]:
    effective = Effective({**{f"{k}_parallelism": v for k, v in (axes or {}).items()}, **config})
    mesh, problems = build_mesh(effective, nodes, 8)
    assert mesh is not None, problems
    return cuts(effective, mesh)


def test_maxtexts_defaults_take_any_size() -> None:
    mesh, problems = mesh_of(nodes=6)
    assert problems == []
    assert mesh is not None
    assert (mesh.size("data"), mesh.size("fsdp"), mesh.devices, mesh.weight_shards) == (6, 8, 48, 8)
    assert mesh.words() == "dcn data=6 | ici fsdp=8"


def test_what_is_left_goes_to_the_open_axis() -> None:
    mesh, _ = mesh_of(8, dcn_data=1, dcn_fsdp="-1", dcn_pipeline="2", ici_fsdp=1, ici_expert=8)
    assert mesh is not None
    assert (mesh.size("fsdp"), mesh.size("pipeline"), mesh.size("expert"), mesh.weight_shards) == (4, 2, 8, 64)


@pytest.mark.parametrize(
    ("nodes", "axes", "says"),
    [
        (8, {"dcn_data": 3}, "multiply to 3, but there are 8 nodes"),
        (8, {"dcn_pipeline": 3}, "multiply to 3, which does not divide 8 nodes"),
        (1, {"ici_fsdp": 4}, "multiply to 4, but there are 8 GPUs per node"),
        (2, {"dcn_fsdp": -1}, "dcn_data_parallelism and dcn_fsdp_parallelism are both -1"),
        (1, {"ici_tensor": 0}, "ici_tensor_parallelism=0"),
        (1, {"ici_tensor": -2}, "ici_tensor_parallelism=-2"),
        (1, {"ici_tensor": "two"}, "ici_tensor_parallelism=two: a whole number is needed"),
        (1, {"ici_tensor": "1.5"}, "a whole number is needed"),
        (1, {"ici_tensor": True}, "a whole number is needed"),
    ],
)
def test_meshes_that_do_not_fit(nodes: int, axes: dict[str, Any], says: str) -> None:
    mesh, (problem,) = mesh_of(nodes, **axes)
    assert mesh is None
    assert says in problem


def test_both_halves_are_told() -> None:
    _, problems = mesh_of(2, dcn_data=3, ici_fsdp=3)
    assert len(problems) == 2


@given(
    st.integers(1, 64),
    st.sampled_from([1, 2, 4, 8]),
    st.dictionaries(st.sampled_from(["data", "fsdp", "tensor", "pipeline", "expert"]), st.integers(-1, 8)),
)
def test_a_mesh_covers_every_gpu_or_there_is_none(nodes: int, gpus: int, sizes: dict[str, int]) -> None:
    mesh, problems = mesh_of(nodes, gpus, **{f"dcn_{a}": n for a, n in sizes.items()})
    assert (mesh is None) == bool(problems)
    if mesh:
        axes = {*mesh.dcn, *mesh.ici}
        assert mesh.size(*axes) == nodes * gpus
        assert all(n >= 1 for n in (*mesh.dcn.values(), *mesh.ici.values()))


TENSOR = {"ici_tensor": 8, "ici_fsdp": 1}


@pytest.mark.parametrize(
    ("nodes", "axes", "config", "says"),
    [
        (24, {"dcn_data": 1, "dcn_fsdp": -1}, {}, "width 2048 cannot be cut into 192"),
        (1, TENSOR, {"base_num_kv_heads": 4}, "base_num_kv_heads=4"),
        (1, TENSOR, {"base_num_query_heads": 12}, "base_num_query_heads=12"),
        (1, {"ici_expert": 8, "ici_fsdp": 1}, {}, "no experts"),
        (1, {"ici_expert": 8, "ici_fsdp": 1}, {"num_experts": 12}, "num_experts=12 cannot be shared"),
        (1, {}, {"num_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok=8 is more"),
        (4, {"dcn_pipeline": 4}, {"base_num_decoder_layers": 18}, "set pipeline_parallel_layers=16"),
        (4, {"dcn_pipeline": 4}, {"num_layers_per_pipeline_stage": 3}, "over 12"),
        (4, {"dcn_pipeline": 4}, {"decoder_block": "deepseek", "first_num_dense_layers": 3}, "13 pipelined layers"),
        (1, {}, {"per_device_batch_size": 0}, "more than 0"),
        (1, {}, {"per_device_batch_size": "0.3"}, "a batch of 2.4"),
        (1, {"ici_context": 8, "ici_fsdp": 1}, {"max_target_length": 1001}, "max_target_length=1001"),
        (2, {"dcn_pipeline": 2}, {"num_experts": 8}, "sparse_matmul does not work with pipeline"),
    ],
)
def test_models_that_cannot_be_cut(nodes: int, axes: dict[str, Any], config: dict[str, Any], says: str) -> None:
    (problem,) = cut(nodes, axes, **config)
    assert says in problem


@pytest.mark.parametrize(
    ("nodes", "axes", "config"),
    [
        (1, TENSOR, {"per_device_batch_size": "0.125"}),  # one sequence for all eight
        (1, TENSOR, {"attention_type": "mla", "base_num_kv_heads": 4}),
        (4, {"dcn_pipeline": 4}, {"base_num_decoder_layers": 18, "pipeline_parallel_layers": 16}),
        (2, {"dcn_pipeline": 2}, {"num_experts": 8, "sparse_matmul": "false"}),
        (2, {"dcn_pipeline": 2}, {"num_experts": 8, "use_turbo_deepep_dispatch": "True"}),
    ],
)
def test_models_that_can(nodes: int, axes: dict[str, Any], config: dict[str, Any]) -> None:
    assert cut(nodes, axes, **config) == []
