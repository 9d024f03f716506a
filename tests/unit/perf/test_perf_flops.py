"""Model FLOPs by hand-made formulas, peaks as data, MFU as ideal time over step time."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import ending, header, steps

from trackwalker.job.gpus import gpus
from trackwalker.job.layout import Job
from trackwalker.launch.request.effective import Effective
from trackwalker.launch.request.memory import count_parameters
from trackwalker.launch.request.models import load_model, model_files
from trackwalker.logs.scanning.index import index_logs
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.perf.analysis.result import PerfReport
from trackwalker.perf.formats.model import Device, Kernels
from trackwalker.perf.throughput.flops import model_flops
from trackwalker.perf.throughput.utilisation import by_name, by_trace, logged_flops, peaks
from trackwalker.trainers.maxtext.hook import peak_tflops
from trackwalker.trainers.tiny.config import Config
from trackwalker.trainers.tiny.metrics import tflops_per_device

REAL = Path(__file__).parents[4] / "shared" / "data" / "maxtext"
DENSE = {
    "base_emb_dim": 64, "base_mlp_dim": 128, "base_num_decoder_layers": 2, "base_num_query_heads": 4,
    "base_num_kv_heads": 4, "head_dim": 16, "vocab_size": 256, "per_device_batch_size": 2, "max_target_length": 64,
}  # fmt: skip


def test_a_dense_step_is_counted_as_on_paper() -> None:
    flops = model_flops(Effective(DENSE))
    rows = 2 * 64
    assert flops.parts["mlp"] == 3 * 2 * rows * 2 * 3 * 64 * 128  # three matrices a layer, two layers
    assert flops.parts["projections"] == 3 * 2 * rows * 2 * 4 * 64 * 64
    assert flops.parts["logits"] == 3 * 2 * rows * 64 * 256
    assert flops.parts["attention"] == 3 * 2 * (4 * 2 * 64 * 64 * 64) / 2  # half of the square
    # MaxText prints of the same model: "split as 92.31% learnable weight flops and 7.69% attention flops"
    assert flops.parts["attention"] / flops.total == pytest.approx(0.0769, abs=5e-5)


def test_fewer_key_heads_save_projections_only() -> None:
    full, grouped = model_flops(Effective(DENSE)), model_flops(Effective({**DENSE, "base_num_kv_heads": 1}))
    assert full.parts["projections"] / grouped.parts["projections"] == pytest.approx(8 / 5)
    assert full.parts["attention"] == grouped.parts["attention"]


def test_only_the_experts_in_use_count_and_the_router_is_its_own_part() -> None:
    moe = {**DENSE, "num_experts": 8, "num_experts_per_tok": 2, "base_moe_mlp_dim": 32, "shared_experts": 1}
    flops = model_flops(Effective({**moe, "first_num_dense_layers": 1}))
    one = 3 * 64 * 32
    assert flops.parts["experts"] == 3 * 2 * 128 * 1 * 3 * one  # two routed and one shared, in one layer
    assert flops.parts["router"] == 3 * 2 * 128 * 64 * 8
    assert flops.parts["mlp"] == 3 * 2 * 128 * 3 * 64 * 128


def test_latent_attention_goes_through_its_low_ranks() -> None:
    mla = {
        **DENSE, "attention_type": "mla", "q_lora_rank": 8, "kv_lora_rank": 4, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 12,
    }  # fmt: skip
    flops = model_flops(Effective(mla))
    weights = 64 * 8 + 8 * 4 * 24 + 64 * (4 + 8) + 4 * 4 * (16 + 12) + 4 * 12 * 64
    assert flops.parts["projections"] == 3 * 2 * 128 * 2 * weights
    assert flops.parts["attention"] == 3 * 2 * (2 * 2 * 64 * 64 * 4 * (16 + 8 + 12)) / 2


def test_layers_that_see_a_window_cost_less() -> None:
    base = {**DENSE, "decoder_block": "gemma3", "base_num_decoder_layers": 6}
    full, local = model_flops(Effective(base)), model_flops(Effective({**base, "sliding_window_size": 16}))
    near = 64 * 16 - 16 * 16 / 2
    assert local.parts["attention"] / full.parts["attention"] == pytest.approx((5 * near + 2048) / (6 * 2048))


@pytest.mark.parametrize("name", [n for n in model_files() if load_model(n).about.trainer == "maxtext"])
def test_every_shipped_model_costs_about_six_flops_per_active_weight_and_token(name: str) -> None:
    model = load_model(name)
    config = Effective({**model.config}, model.about.architecture)
    flops = model_flops(config)
    active = count_parameters(config).active
    if not config.flag("logits_via_embedding"):
        active -= config.whole("vocab_size") * config.whole("base_emb_dim")  # looking a row up is no product
    tokens = config.number("per_device_batch_size") * config.whole("max_target_length")
    assert (flops.total - flops.parts["attention"]) / (6 * active * tokens) == pytest.approx(1.0, abs=0.01)


def test_our_count_is_the_tiny_trainers_own(tmp_path: Path) -> None:
    config = Config(num_experts=4, num_experts_per_tok=2)
    text = header(1, steps=20) + "".join(f"0: {line}\n" for line in config.lines()) + steps(19, 1) + ending(0)
    found = report(tmp_path, text)
    assert found.flops is not None
    assert found.flops.tflops == pytest.approx(tflops_per_device(config), rel=1e-9)


def report(folder: Path, text: str, **options: object) -> PerfReport:
    path = folder / "77-JAX-toy.log"
    path.write_text(text)
    return analyse(Job("77", path, None), Options(with_traces=False, **options))  # type: ignore[arg-type]


def test_mfu_is_ideal_time_over_step_time_and_mixed_types_have_their_own_peaks(tmp_path: Path) -> None:
    config = {**DENSE, "base_emb_dim": 4096, "base_mlp_dim": 16384, "max_target_length": 4096, "head_dim": 1024}
    text = header(1, steps=30, dtype="bfloat16", **config) + steps(29, 1, seconds=2.0) + ending(0)
    plain = report(tmp_path, text, gpu="H200")
    assert plain.utilisation is not None
    assert plain.flops is not None
    assert plain.utilisation.mfu == pytest.approx(plain.flops.tflops / 989 / 2.0, rel=1e-3)
    small = report(tmp_path, text.replace("param dtype", "param quantization: fp8\n0: Config param dtype"), gpu="H200")
    assert small.utilisation is not None
    parts = plain.flops.parts
    ideal = (parts["mlp"] + parts["projections"]) / 1979 + (parts["attention"] + parts["logits"]) / 989
    assert small.utilisation.mfu == pytest.approx(ideal / 2.0, rel=1e-3)
    assert set(small.utilisation.peak_tflops) == {"bfloat16", "float8"}


def test_an_unknown_device_has_no_percentage_and_an_impossible_one_is_not_printed(tmp_path: Path) -> None:
    text = header(1, steps=30, **DENSE) + steps(29, 1, seconds=2.0) + ending(0)
    unknown = report(tmp_path, text)
    assert unknown.utilisation is None
    assert any(m.what == "MFU" and "--peak" in m.do for m in unknown.missing)
    impossible = report(tmp_path, text, peak=1e-6)
    assert impossible.utilisation is not None
    assert impossible.utilisation.mfu is None
    assert any("impossible" in m.why for m in impossible.missing)


def test_a_dump_that_contradicts_the_model_file_is_not_filled_up_from_it(tmp_path: Path) -> None:
    named = header(1, steps=30, base_emb_dim=4096, per_device_batch_size=1, max_target_length=128)
    named = named.replace("NNODES=1", "NNODES=1\nMODEL_NAME=llama2-70b")
    found = report(tmp_path, named + steps(29, 1) + ending(0))
    assert found.flops is None
    assert any("base_emb_dim is 4096 in the run" in m.why for m in found.missing)
    agrees = named.replace("base_emb_dim: 4096", "base_emb_dim: 8192")
    assert report(tmp_path, agrees + steps(29, 1) + ending(0)).flops is not None


@pytest.mark.parametrize("name", sorted(gpus()))
def test_the_trainer_on_its_node_and_the_report_reckon_with_the_same_peak(name: str) -> None:
    known = peaks()[name].tflops
    assert {by_name(part) and by_name(part).device for part in gpus()[name]["names"]} == {name}  # type: ignore[union-attr]
    assert peak_tflops(gpus()[name]["names"][0], "", {}) == known["bfloat16"]
    assert peak_tflops(gpus()[name]["names"][0], "fp8_full", {}) == known.get("float8", known["bfloat16"])


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H100 PCIe", "H100 PCIe"), ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"), ("NVIDIA GB200", "GB200"), ("AMD Instinct MI300X", "MI300X"), ("gfx908", "MI100"),
        ("AMD Instinct MI250X/MI250", "MI250X"), ("Quantum 9", None),
    ],
)  # fmt: skip
def test_devices_are_known_by_their_names(said: str, name: str | None) -> None:
    found = by_name(said)
    assert (found.device if found else None) == name


def test_a_profile_without_a_name_tells_the_device_by_its_cores_and_memory() -> None:
    facts = {"compute_cap_major": 9, "compute_cap_minor": 0, "core_count": 132, "memory_size": 140 * 2**30}
    device = Device(0, "/device:GPU:0", "gpu", Kernels.empty(), vendor="Nvidia", facts=dict(facts))
    found = by_trace(device)
    assert found is not None
    assert found.device == "H200"
    assert by_trace(Device(0, "", "gpu", Kernels.empty(), vendor="Nvidia", facts={**facts, "core_count": 7})) is None


@pytest.mark.skipif(not REAL.is_dir(), reason="the recorded MaxText logs are kept outside the repository")
def test_our_count_agrees_with_what_real_maxtext_prints(tmp_path: Path) -> None:
    few = "the trainer prints too few digits to compare"  # two processes on one CPU: 0.001 at best
    for name, agrees in (("maxtext1.log", "the trainer counts the same"), ("maxtext-mp0.log", few)):
        found = report(tmp_path, (REAL / name).read_text(errors="replace"))
        assert found.flops is not None
        assert found.flops.agrees == agrees
        assert found.flops.attention_share == pytest.approx(0.0769, abs=5e-5)


@pytest.mark.parametrize(
    ("rates", "seconds", "least", "most"),
    [
        ([0.002] + [0.001] * 9, [0.4] + [0.9] * 9, 0.00056, 0.00104),  # rounded up from 0.0006: not 0.0009
        ([0.012, 0.000], [0.1, 3.0], 0.00113, 0.00127),
        ([250.125] * 3, [4.0] * 3, 1000.49, 1000.51),
    ],
)
def test_every_printed_rate_bounds_what_a_step_computes(
    tmp_path: Path, rates: list[float], seconds: list[float], least: float, most: float
) -> None:
    lines = [
        f"completed step: {i}, seconds: {s:.3f}, TFLOP/s/device: {r:.3f}, Tokens/s/device: {128 / s:.3f}, "
        "total_weights: 128, loss: 6.0"
        for i, (r, s) in enumerate(zip(rates, seconds, strict=True))
    ]
    log = tmp_path / "7-x.log"
    log.write_text("\n".join(lines) + "\n")
    told = logged_flops(index_logs(log).facts, 128.0)
    assert told.tflops is not None
    assert least <= told.tflops * (1 - told.digits)
    assert told.tflops * (1 + told.digits) <= most
