"""Parameters are counted exactly; memory is estimated, and says so."""

from __future__ import annotations

import pytest

from trackwalker.errors import UsageError
from trackwalker.launch.request.effective import Effective
from trackwalker.launch.request.memory import GIB, count_parameters, estimate_memory, find_gpu, gpu_profiles
from trackwalker.launch.request.mesh import build_mesh
from trackwalker.launch.request.models import load_model, model_files

# What the authors publish, in 1e9 (the checkpoints' own sums where those are known).
PUBLISHED = {
    "llama2-70b": (68.98, None),
    "llama3-70b": (70.55, None),
    "llama3.1-70b": (70.55, None),
    "llama3.1-405b": (405.85, None),
    "mixtral-8x22b": (140.6, 39.2),
    "grok-2": (269.5, 115.0),
    "deepseek3-671b": (671.0, 37.6),
    "kimi-k2-1t": (1026.4, 32.9),
    "qwen3-14b": (14.77, None),
    "qwen3-30b-a3b": (30.53, 3.35),
    "qwen3-480b-a35b": (480.2, 35.5),
}


def effective(name: str, **more: object) -> Effective:
    model = load_model(name, {})
    return Effective({**model.config, **more}, model.about.architecture)


@pytest.mark.parametrize(("name", "total", "active"), [(n, *counts) for n, counts in PUBLISHED.items()])
def test_parameters_are_those_that_are_published(name: str, total: float, active: float | None) -> None:
    counted = count_parameters(effective(name))
    assert counted.total / 1e9 == pytest.approx(total, rel=1e-3)
    assert counted.active / 1e9 == pytest.approx(active or total, rel=5e-3)


def test_grok_1_is_its_authors_round_number_within_one_percent() -> None:
    assert count_parameters(effective("grok-1")).total == pytest.approx(314e9, rel=0.01)


def test_every_files_own_figure_is_what_it_counts_to() -> None:
    for name in model_files({}):
        model = load_model(name, {})
        if model.about.parameters:
            assert count_parameters(effective(name)).total == pytest.approx(model.about.parameters, rel=0.01), name


def test_llama2_70b_to_the_last_weight() -> None:
    assert count_parameters(effective("llama2-70b")).total == 68_976_648_192


def test_gpus() -> None:
    memory = {name: gpu.memory_gib for name, gpu in gpu_profiles().items()}
    assert [memory[n] for n in ("MI300X", "MI325X", "MI355X", "H100", "H200", "B200")] == [192, 256, 288, 80, 140, 179]
    assert find_gpu("mi300x").vendor == "amd"
    assert find_gpu("H200").vendor == "nvidia"
    with pytest.raises(UsageError, match="unknown GPU 'TPU'; known: "):
        find_gpu("TPU")


def estimate(name: str, nodes: int, gpu: str, **more: object):  # type: ignore[no-untyped-def]
    config = effective(name, **more)
    mesh, problems = build_mesh(config, nodes, 8)
    assert mesh is not None, problems
    return estimate_memory(config, mesh, find_gpu(gpu))


def test_what_is_kept_for_the_whole_run() -> None:
    it = estimate("llama2-70b", 1, "MI300X")
    assert it.weights == pytest.approx(68.98e9 * 4 / 8, rel=1e-3)
    assert it.optimizer == pytest.approx(2 * it.weights)
    assert estimate("llama2-70b", 4, "MI300X").state == it.state  # data parallelism copies
    assert estimate("llama3.1-405b", 16, "MI355X").state == pytest.approx(estimate("405b", 8, "MI355X").state / 2)
    assert estimate("llama2-70b", 1, "MI300X", weight_dtype="bfloat16").state == pytest.approx(it.state / 2)
    assert estimate("llama2-70b", 1, "MI300X", opt_type="sgd").optimizer == 0


def test_activations_follow_batch_length_and_policy() -> None:
    kept = {p: estimate("llama2-70b", 1, "MI300X", remat_policy=p).activations for p in ("full", "minimal", "none")}
    assert kept["full"] < kept["minimal"] < kept["none"]
    # 80 layers keep their input, 4 x 4096 tokens of 8192 bfloat16 each; the rest is one layer and the logits.
    inputs = 80 * 4 * 4096 * 8192 * 2
    assert inputs < kept["full"] < 2 * inputs
    assert estimate("llama2-70b", 1, "MI300X", per_device_batch_size=8).activations == pytest.approx(2 * kept["full"])


@pytest.mark.parametrize(
    ("name", "nodes", "gpu", "batch", "verdict"),
    [
        ("llama2-70b", 1, "MI300X", 4, "fits"),
        ("llama2-70b", 1, "MI300X", 8, "tight"),
        ("llama2-70b", 1, "MI300X", 24, "unlikely"),
        ("llama2-70b", 1, "H100", 1, "impossible"),
        ("llama3.1-405b", 1, "MI355X", 1, "impossible"),
    ],
)
def test_verdicts(name: str, nodes: int, gpu: str, batch: int, verdict: str) -> None:
    assert estimate(name, nodes, gpu, per_device_batch_size=batch).verdict == verdict


def test_an_estimate_says_its_error_and_its_parts() -> None:
    words = estimate("llama2-70b", 1, "MI300X").words()
    assert "± 25%" in words
    assert "of 179 usable on MI300X" in words
    assert f"{192 * 0.93:.0f}" == "179"
    assert all(part in words for part in ("weights 32", "optimizer 64", "gradients 32", "activations"))
    assert estimate("llama2-70b", 1, "MI300X").usable == 192 * GIB * 0.93


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(UsageError, match="remat_policy=most: known policies are full"):
        estimate("llama2-70b", 1, "MI300X", remat_policy="most")
