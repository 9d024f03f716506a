"""From a kernel to the line and the part of the model that asked for it."""

from __future__ import annotations

import pytest

from conftest import ROOT
from trackwalker.perf.analysis.device_view import DeviceView, view
from trackwalker.perf.analysis.parts import align, part_of, phase_of
from trackwalker.perf.formats.reader import read_trace
from trackwalker.perf.hlo.program import Computation, Instruction, Program, Shape
from trackwalker.perf.hlo.proto import read_proto

H200 = ROOT / "tests" / "data" / "perf" / "h200.xplane.pb.gz"


@pytest.fixture(scope="module")
def h200() -> DeviceView:
    trace = read_trace(H200)
    (device,) = trace.devices
    ran = set(device.kernels.program.tolist()) & set(trace.programs)
    return view(trace, device, {key: read_proto(trace.programs[key], key) for key in ran})


@pytest.mark.parametrize(
    ("path", "part", "phase"),
    [
        ("jit(f)/jvp()/while/body/eval_jaxpr/attention/vmap(BTNH,BSNH->BNTS)/dot_general", "attention", "forward"),
        ("jit(train_step)/transpose(jvp())/while/body/closed_call/checkpoint/mlp/mul", "mlp", "backward"),
        ("jit(f)/transpose(jvp())/while/body/checkpoint/rematted_computation/attn/div", "attention", "recompute"),
        ("jit(train_step)/optimizer/convert_element_type", "optimiser", "optimiser"),
        ("jit(train_step)/jvp(embed)/gather", "embedding", "forward"),
        ("jit(train_step)/transpose(jvp(logits))/dot_general", "logits", "backward"),
        ("jit(train_step)/jvp(logits)/jit(log_softmax)/sub", "logits", "forward"),
        ("jit(train_step)/jvp(Transformer)/decoder/layers/self_attention/query/dot_general", "attention", "forward"),
        ("jit(train_step)/jvp(Transformer)/decoder/layers/mlp/wi_0/dot_general", "mlp", "forward"),
        ("jit(train_step)/jvp(Transformer)/decoder/moe_layers/MoeBlock_0/gate/dot_general", "moe", "forward"),
        ("jit(train_step)/jvp(Transformer)/decoder/layers/pre_self_attention_layer_norm/rsqrt", "norm", "forward"),
        ("jit(train_step)/jvp(Transformer)/decoder/decoder_norm/mul", "norm", "forward"),
        ("jit(train_step)/jvp(Transformer)/token_embedder/take", "embedding", "forward"),
        ("jit(train_step)/jvp()/transpose", "other", "forward"),
        ("jit(_normal)/jit(_normal_real)/erf_inv", "other", "other"),
        ("", "other", "other"),
    ],
)  # fmt: skip
def test_an_op_path_tells_part_and_pass(path: str, part: str, phase: str) -> None:
    assert part_of(path) == part
    assert phase_of(path) == phase


def program(*rows: tuple[str, str]) -> Program:
    made = [Instruction(name, opcode, Shape("f32"), path=f"jit(f)/{name}/op") for name, opcode in rows]
    return Program("m", "main", {"main": Computation("main", made)})


def aligned(kernels: list[str], made: Program) -> list[str | None]:
    return [found.name if found else None for found in align(kernels, made)]


def test_kernels_of_a_graph_are_found_by_their_order_where_their_names_do_not_tell() -> None:
    made = program(
        ("p.0", "parameter"), ("fusion-start.1", "async-start"), ("loop_add_fusion.1", "fusion"),
        ("custom-call.3", "custom-call"), ("loop_add_fusion.2", "fusion"), ("custom-call.1", "custom-call"),
        ("fusion.9", "fusion"), ("custom-call.2", "custom-call"), ("fusion-done.1", "async-done"),
    )  # fmt: skip
    # The second addition runs the first one's kernel; the last library call launches two kernels.
    kernels = ["memcpy128", "loop_add_fusion_1", "Memset 0", "nvjet_a", "loop_add_fusion_1", "nvjet_b", "fusion_9",
               "nvjet_c", "splitKreduce_kernel"]  # fmt: skip
    assert aligned(kernels, made) == [
        "fusion-start.1", "loop_add_fusion.1", None, "custom-call.3", "loop_add_fusion.2", "custom-call.1", "fusion.9",
        "custom-call.2", "custom-call.2",
    ]  # fmt: skip


def test_a_graph_that_begins_with_a_library_call_is_aligned_too() -> None:
    made = program(("custom-call.1", "custom-call"), ("custom-call.2", "custom-call"), ("fusion.3", "fusion"))
    assert aligned(["nvjet_b", "fusion_3"], made) in (["custom-call.1", "fusion.3"], ["custom-call.2", "fusion.3"])
    assert aligned(["nvjet_a", "nvjet_b", "fusion_3"], made) == ["custom-call.1", "custom-call.2", "fusion.3"]


def test_a_graph_without_a_single_known_name_is_left_alone() -> None:
    assert aligned(["nvjet_a", "nvjet_b"], program(("custom-call.1", "custom-call"))) == [None, None]


def test_kernels_in_the_graphs_of_the_recorded_trace_find_their_lines(h200: DeviceView) -> None:
    names = h200.trace.strings
    kernels, found = h200.device.kernels, h200.origins
    spent = kernels.end - kernels.start
    assert spent[found.source >= 0].sum() / spent.sum() > 0.99
    by_part = {(cost.part, cost.phase): cost.ps for cost in h200.by_part()}
    total = sum(by_part.values())
    assert sum(ps for (part, _), ps in by_part.items() if part == "other") / total < 0.03
    assert by_part["attention", "backward"] / total == pytest.approx(0.316, abs=0.005)
    assert by_part["mlp", "forward"] / total == pytest.approx(0.074, abs=0.003)
    # Two products of the model's width forward in the loop's body: one launch each, 8 layers, 4 steps.
    mlp = [c for c in h200.by_op(500) if c.part == "mlp" and c.phase == "forward" and c.kind == "gemm"]
    assert [(c.count, c.source.rsplit("/", 1)[-1]) for c in mlp] == [(64, "capture.py:45")]
    assert names[int(found.source[0])].startswith("/home/user/llm/train/h200/capture.py:")


def test_tables_hold_every_kernel_of_the_steps_once(h200: DeviceView) -> None:
    inside = h200.in_steps
    spent = int((h200.device.kernels.end - h200.device.kernels.start)[inside].sum())
    for table in (h200.by_class(), h200.by_part(), h200.by_kernel(10_000), h200.by_op(10_000)):
        assert sum(cost.ps for cost in table) == spent
        assert sum(cost.count for cost in table) == int(inside.sum())
        assert [c.ps for c in table] == sorted((c.ps for c in table), reverse=True)
    worst = h200.by_kernel(1)[0]
    assert (worst.name, worst.kind) == ("fusion_83", "softmax"), (
        "attention written out: its softmax goes through memory"
    )
