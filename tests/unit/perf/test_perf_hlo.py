"""Compiled programs, from proto and from text: collectives, groups, loops, products, memory."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_maker import Recipe, program

from conftest import ROOT
from trackwalker.errors import EvidenceError
from trackwalker.perf.formats.xplane import TraceFile
from trackwalker.perf.hlo.collectives import bus_factor, by_kind, bytes_by_kind, kind_of, program_collectives
from trackwalker.perf.hlo.cost import cost, op_costs
from trackwalker.perf.hlo.groups import chains, iota_groups, mesh_groups, parse_groups
from trackwalker.perf.hlo.program import Shape
from trackwalker.perf.hlo.programs import read_text
from trackwalker.perf.hlo.proto import read_proto
from trackwalker.perf.ranks.perfetto import block, number

DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not (DATA / "xplane").is_dir(), reason="the recorded traces are not on this machine")

# A step as XLA prints it: a loop of known length with an asynchronous gather around a product, a combined reduction,
# an exchange inside a wrapper, a permutation, and a recomputed product in a fusion.
TEXT = (ROOT / "tests" / "data" / "perf" / "train_step.hlo.txt").read_text()


def test_a_text_gives_each_collective_with_its_bytes_groups_and_number_of_runs() -> None:
    found = {c.kind: c for c in program_collectives(read_text(TEXT), 4)}
    assert set(found) == {"all-gather", "all-reduce", "all-to-all", "collective-permute"}
    gather = found["all-gather"]
    assert (gather.runs, gather.asynchronous) == (5, True)
    assert gather.bytes == 128 * 256 * 2, "an all-gather counts what a rank ends up with"
    assert gather.groups == ((0, 1, 2, 3),)
    assert gather.source == "train.py:17"
    assert found["all-reduce"].bytes == 2 * 8 * 16 * 4, "a combined one counts all its operands"
    assert found["all-reduce"].groups == ((0, 2), (1, 3))
    assert not found["all-reduce"].asynchronous
    assert found["all-to-all"].names == ("all-to-all-start", "all-to-all.7"), "a trace may name either"
    assert found["collective-permute"].groups == ((0, 1), (2, 3))


def test_what_is_scheduled_between_start_and_done_is_what_may_hide_a_collective() -> None:
    found = {c.kind: c for c in program_collectives(read_text(TEXT), 4)}
    assert found["all-gather"].between == 1
    assert found["all-gather"].between_flops == 2 * 64 * 64 * 128
    assert (found["all-to-all"].between, found["all-to-all"].crosses) == (0, False), "nothing runs beside it"


def test_flops_are_those_of_products_times_their_loops_with_recomputation_apart() -> None:
    found = cost(read_text(TEXT))
    library, fused = 2 * 64 * 64 * 128, 2 * 64 * 256 * 128
    assert found.flops == 5 * (library + fused)
    assert found.recomputed == 5 * fused
    assert found.by_dtype == {"bf16": found.flops}
    assert op_costs(read_text(TEXT))["fusion.1"].flops == fused, "a fusion counts what is fused into it"


def test_fusions_are_counted_by_the_kind_their_backend_says() -> None:
    assert read_text(TEXT).fusions() == {"__triton_gemm": 1}


def test_a_loop_of_unknown_length_is_counted_once_and_named() -> None:
    found = read_text(TEXT.replace(', backend_config={"known_trip_count":{"n":"5"}}', ""))
    assert found.unknown_loops == ["while.1"]
    assert by_kind(program_collectives(found, 4))["all-gather"] == 1


def test_older_texts_with_shapes_before_operands_and_quoted_settings_are_read() -> None:
    old = TEXT.replace("all-reduce(%g, %g)", "all-reduce(f32[8,16]{1,0} %g, f32[8,16]{1,0} %g)")
    old = old.replace('{"known_trip_count":{"n":"5"}}', '"{\\"known_trip_count\\":{\\"n\\":\\"5\\"}}"')
    assert bytes_by_kind(program_collectives(read_text(old), 4)) == bytes_by_kind(
        program_collectives(read_text(TEXT), 4)
    )


def test_a_file_that_is_no_program_says_so() -> None:
    with pytest.raises(EvidenceError, match="HloModule"):
        read_text("completed step: 3")
    with pytest.raises(EvidenceError, match="HLO proto"):
        read_proto(b"\x0a\xff\x01 cut")


def test_the_program_in_a_trace_gives_the_same_facts_as_its_recipe() -> None:
    recipe = Recipe(gpus=8, layers=3, group=4, bytes=1 << 20)
    found = program_collectives(read_proto(program(recipe)))
    assert by_kind(found) == {"all-gather": 3, "reduce-scatter": 3, "all-reduce": 1}
    assert {c.bytes for c in found} == {1 << 20}, "as nccl-tests count: the larger side, for every kind"
    assert {c.size for c in found if c.kind != "all-reduce"} == {4}
    assert next(c for c in found if c.kind == "all-reduce").groups == (tuple(range(8)),)


@pytest.mark.parametrize(
    ("extra", "groups"),
    [
        (block(49, block(1, b"\x00\x01")) + block(49, block(1, b"\x02\x03")), ((0, 1), (2, 3))),
        (block(87, block(1, block(1, b"\x00\x02")) + block(1, block(1, b"\x01\x03"))), ((0, 2), (1, 3))),
        (block(92, number(1, 2) + number(2, 2) + block(3, b"\x02\x02") + block(4, b"\x01\x00")), ((0, 2), (1, 3))),
        (
            block(
                93,
                block(1, block(1, block(1, "a") + number(2, 2)) + block(1, block(1, "b") + number(2, 2)))
                + block(2, b""),  # the first axis is an empty message
            ),
            ((0, 2), (1, 3)),
        ),
        (block(52, number(2, 1)) + block(52, number(1, 1)), ((0, 1),)),
    ],
    ids=["listed", "device list", "iota", "mesh", "pairs"],
)
def test_every_form_of_groups_in_a_proto_is_read(extra: bytes, groups: tuple[tuple[int, ...], ...]) -> None:
    shape = number(2, 11) + number(3, 16)
    operand = block(2, block(1, "p") + block(2, "parameter") + block(3, shape) + number(35, 1))
    opcode = "collective-permute" if groups == ((0, 1),) else "all-reduce"
    own = block(1, "r") + block(2, opcode) + block(3, shape) + number(35, 2) + number(36, 1) + extra
    module = block(1, "m") + block(3, block(1, "main") + operand + block(2, own) + number(5, 7)) + number(6, 7)
    (found,) = program_collectives(read_proto(block(1, module)))
    assert found.groups == groups
    assert found.bytes == 64


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{}", ()),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=1,'c'=2], device_ids=([2,2]T(1,0)) {'a'}", ((0, 1), (2, 3))),
        ("mesh['a'=2,'b'=2] {'a','b'}", ((0, 1, 2, 3),)),
        ("mesh['a'=4] {'a':(1)2}", ((0, 2), (1, 3))),
        ("mesh['a'=4] {'a':(2)2}", ((0, 1), (2, 3))),
    ],
)
def test_every_printed_form_of_groups_is_read(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert parse_groups(text) == groups


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_mesh_groups_are_the_devices_that_differ_only_along_the_chosen_axes(
    sizes: list[int], data: st.DataObject
) -> None:
    axes = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
    found = mesh_groups(sizes, [(a, 1, 0) for a in sorted(axes)])
    place = dict(enumerate(itertools.product(*(range(s) for s in sizes))))
    expected: dict[tuple[int, ...], set[int]] = {}
    for device, at in place.items():
        expected.setdefault(tuple(x for i, x in enumerate(at) if i not in axes), set()).add(device)
    assert {frozenset(g) for g in found} == {frozenset(g) for g in expected.values()}


def test_iota_groups_hold_every_device_once() -> None:
    found = iota_groups(4, 4, [2, 4, 2], [2, 0, 1])
    assert sorted(itertools.chain(*found)) == list(range(16))
    assert found[0] == tuple(int(d) for d in np.arange(16).reshape(2, 4, 2).transpose(2, 0, 1).reshape(4, 4)[0])


def test_devices_that_send_to_each_other_wait_for_each_other() -> None:
    assert chains(((0, 1), (1, 2), (4, 5))) == ((0, 1, 2), (4, 5))


def test_shapes_count_packed_numbers_and_tuples() -> None:
    assert Shape("s4", (3,)).bytes == 2
    assert Shape("f8e4m3fn", (10,)).bytes == 10
    assert Shape("tuple", (), (Shape("bf16", (4,)), Shape("pred", (3,)))).bytes == 11


def test_names_of_kernels_tell_the_kind_and_bus_factors_follow_nccl_tests() -> None:
    assert kind_of("ncclDevKernel_AllGather_RING_LL") == "all-gather"
    assert kind_of("RaggedAllToAllKernelImpl") == "ragged-all-to-all"
    assert kind_of("loop_add_fusion", "reduce-scatter-start.3") == "reduce-scatter"
    assert kind_of("nvjet_tst_128x256") == ""
    assert bus_factor("all-reduce", 8) == pytest.approx(1.75)
    assert bus_factor("all-gather", 8) == pytest.approx(0.875)
    assert bus_factor("all-reduce", 1) == 0


@needs_data
def test_a_real_training_step_has_the_collectives_that_were_counted_by_hand() -> None:
    text = gzip.decompress((DATA / "xplane" / "jit_train_step.cpu_after_optimizations.hlo.txt.gz").read_bytes())
    printed = read_text(text.decode())
    trace = TraceFile(DATA / "xplane" / "cpu_train_step.xplane.pb").trace
    (number_of,) = [n for n, name in trace.program_names.items() if name == "jit_train_step"]
    embedded = read_proto(trace.programs[number_of])
    for found in (printed, embedded):
        collectives = program_collectives(found)
        assert by_kind(collectives) == {"all-gather": 26, "all-reduce": 7, "all-to-all": 2}
        assert {c.groups for c in collectives if c.kind == "all-gather"} == {((0, 1), (2, 3))}
    assert cost(printed) == cost(embedded)
    assert set(printed.instructions) == set(embedded.instructions)
    assert embedded.memory
    assert embedded.memory.temporary > 0
    assert embedded.memory.live


@needs_data
def test_products_of_the_h200_step_are_those_of_its_model() -> None:
    path = DATA / "h200" / "train_step.after_optimizations.hlo.txt.gz"
    found = cost(read_text(gzip.decompress(Path(path).read_bytes()).decode()))
    tokens, d, mlp, layers, sequence, vocabulary = 16384, 2048, 8192, 8, 2048, 32000
    down = layers * 2 * tokens * d * mlp
    forward = layers * 2 * tokens * 4 * d * d + 2 * down + layers * 4 * tokens * sequence * d
    head = 2 * tokens * d * vocabulary
    # The last product of a layer need not be recomputed: nothing of the backward pass reads its result.
    assert found.recomputed == forward - down
    assert found.flops == 3 * (forward + head) + forward - down
    assert found.unknown == {}
