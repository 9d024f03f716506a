"""Reading traces: what the file says, whole or cut, from GPUs and from CPUs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from trace_maker import US, Recipe, write_one

from conftest import ROOT
from trackwalker.errors import EvidenceError
from trackwalker.perf.analysis.detail import fullest
from trackwalker.perf.analysis.device_view import view
from trackwalker.perf.formats.model import NONE, Buckets, Trace
from trackwalker.perf.formats.reader import read_trace
from trackwalker.perf.formats.wire import field_at
from trackwalker.perf.formats.xplane import TraceFile
from trackwalker.perf.ranks.perfetto import block, number

H200 = ROOT / "tests" / "data" / "perf" / "h200.xplane.pb.gz"
SHARED = ROOT.parent / "shared" / "data"
RECIPE = Recipe(gpus=3, steps=3, layers=2, kernels=3, slow={1: 1.5})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "host0.xplane.pb"
    write_one(RECIPE, path)
    return path


def columns(trace: Trace) -> list[list[tuple[int, ...]]]:
    return [list(zip(d.kernels.start, d.kernels.end, d.kernels.name, d.kernels.op, strict=True)) for d in trace.devices]


def whole(trace: Trace, device: int) -> Buckets:
    """The buckets from the first event of a device to its last."""
    seen = view(trace, trace.devices[device], {})
    kernels = trace.devices[device].kernels
    return seen.line.buckets([replace_span(seen.steps[0], int(kernels.start[0]), int(kernels.end.max()))])[0]


def replace_span(step, start: int, end: int):
    return type(step)(None, start, end)


def test_every_rank_of_a_made_trace_gets_exactly_the_buckets_it_was_made_with(made: Path) -> None:
    trace = read_trace(made)
    timeline = write_one(RECIPE, made)
    for rank in range(RECIPE.gpus):
        truth = timeline.truth(rank)
        span = truth.pop("span")
        found = whole(trace, rank)
        assert vars(found) == truth
        assert found.total == span
    assert (trace.hostname, len(trace.devices)) == ("host0", 3)
    assert trace.origin_ns == 1_700_000_000_000_000_000
    assert trace.gaps == []
    assert list(trace.program_names.values()) == ["jit_train_step"]
    assert trace.devices[0].vendor == "Nvidia"
    assert trace.devices[0].facts["core_count"] == 132


def test_kernels_know_their_launch_their_program_and_their_bytes(made: Path) -> None:
    trace = read_trace(made)
    kernels = trace.devices[1].kernels
    assert (np.diff(kernels.start) >= 0).all()
    assert set(kernels.program.tolist()) == {42, NONE}, "copies belong to no program"
    assert set(kernels.bytes.tolist()) == {NONE, 1048576}
    seen = view(trace, trace.devices[1], {})
    assert (seen.launched.start > 0).all()
    assert (seen.launched.start < kernels.start).all()


def test_steps_are_the_same_with_and_without_markers(tmp_path: Path) -> None:
    spans = []
    for name, marked in (("with", True), ("without", False)):
        path = tmp_path / f"{name}.xplane.pb"
        write_one(Recipe(gpus=1, steps=4, layers=2, markers=marked), path)
        trace = read_trace(path)
        steps = view(trace, trace.devices[0], {}).steps
        assert [step.number for step in steps] == ([0, 1, 2, 3] if marked else [None] * 4)
        spans.append([(step.start, step.end) for step in steps])
    assert spans[0] == spans[1]


def test_a_packed_trace_reads_as_the_plain_one(made: Path, tmp_path: Path) -> None:
    packed = tmp_path / "host0.xplane.pb.gz"
    packed.write_bytes(gzip.compress(made.read_bytes()))
    assert columns(read_trace(packed)) == columns(read_trace(made))


def test_a_trace_cut_anywhere_gives_its_whole_devices_and_says_that_it_is_cut(made: Path, tmp_path: Path) -> None:
    raw = made.read_bytes()
    full = columns(read_trace(made))
    cut = tmp_path / "cut.xplane.pb"
    for size in range(1, len(raw), len(raw) // 17):
        cut.write_bytes(raw[:size])
        trace = read_trace(cut)
        assert any("breaks off" in gap.why for gap in trace.gaps) or size in _plane_ends(raw)
        for device in trace.devices:
            kernels, known = device.kernels, full[device.id]
            assert list(zip(kernels.start, kernels.end, strict=True)) == [row[:2] for row in known]
            assert (kernels.name >= 0).all()


def _plane_ends(raw: bytes) -> set[int]:
    ends, at = set(), 0
    while at < len(raw):
        _, _, at = field_at(memoryview(raw), at, len(raw))
        ends.add(at)
    return ends


def test_damaged_bytes_never_end_in_anything_but_a_plain_error(made: Path, tmp_path: Path) -> None:
    raw = bytearray(made.read_bytes())
    rng = np.random.default_rng(5)
    hurt = tmp_path / "hurt.xplane.pb"
    for _ in range(8):
        copy = bytearray(raw)
        for at in rng.integers(0, len(raw), 20):
            copy[at] = int(rng.integers(0, 256))
        hurt.write_bytes(copy)
        try:
            trace = read_trace(hurt)
        except EvidenceError:
            continue
        for device in trace.devices:
            assert len(device.kernels) > 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"neither", "not an XLA trace"),
        (b'{"perf": 1}', "no traceEvents"),
        (b"\x0a\x00\x99", "damaged"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.xplane.pb").write_bytes(content)
    with pytest.raises(EvidenceError, match=says):
        read_trace(tmp_path / "x.xplane.pb")


def test_a_missing_file_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_trace(tmp_path / "none.xplane.pb")


def name_of(field: int, identifier: int, name: str) -> bytes:
    return block(field, number(1, identifier) + block(2, number(1, identifier) + block(2, name)))


def event(metadata: int, offset: int, duration: int, stats: bytes = b"") -> bytes:
    length = number(3, duration) if duration else b""  # a zero is not written
    return block(4, number(1, metadata) + number(2, offset) + length + stats)


def plane(name: str, lines: bytes, events: dict[int, str], stats: dict[int, str]) -> bytes:
    names = b"".join(name_of(4, i, n) for i, n in events.items()) + b"".join(name_of(5, i, n) for i, n in stats.items())
    return block(1, block(2, name) + lines + names)


def test_an_odd_trace_is_read_as_it_says(tmp_path: Path) -> None:
    """Texts written out, ids of two bytes, a clock that counts from 1970, events without duration, derived lines."""
    text = block(4, number(1, 300) + block(5, "fusion.7")) + block(4, number(1, 2) + number(4, 2**64 - 3))
    line = block(3, number(1, 7) + block(2, "Stream #7(Compute)") + number(3, 1_700_000_000_000_000_005)
                 + event(1, 2_000, 500, text) + event(1, 9_000, 0) + number(9, 44))  # fmt: skip
    derived = block(3, number(1, 8) + block(2, "XLA Ops") + number(3, 1_700_000_000_000_000_005) + event(1, 0, 99_000))
    raw = plane("/device:GPU:4", line + derived, {1: "loop_add_fusion.kd"}, {300: "hlo_op", 2: "program_id"})
    raw += plane("/device:GPU:5", b"", {}, {}) + block(2, "dropped 17 events") + block(4, "node9")
    (tmp_path / "odd.xplane.pb").write_bytes(raw)
    trace = read_trace(tmp_path / "odd.xplane.pb")
    (device,) = trace.devices
    assert (device.id, trace.hostname) == (4, "node9")
    assert device.kernels.start.tolist() == [2_000, 9_000]
    assert device.kernels.end.tolist() == [2_500, 9_000]
    assert trace.origin_ns == 1_700_000_000_000_000_005
    assert [trace.strings[int(i)] for i in device.kernels.op] == ["fusion.7", ""]
    assert [trace.strings[int(i)] for i in device.kernels.name] == ["loop_add_fusion", "loop_add_fusion"]
    assert device.kernels.program.tolist() == [-3, NONE]
    assert "dropped 17 events" in trace.gaps[0].why


def test_a_trace_without_a_device_says_so(tmp_path: Path) -> None:
    line = block(3, number(1, 1) + block(2, "python") + event(1, 0, 10))
    (tmp_path / "host.xplane.pb").write_bytes(plane("/host:CPU", line, {1: "$train.py:3 main"}, {}))
    trace = read_trace(tmp_path / "host.xplane.pb")
    assert trace.devices == []
    assert "device plane" in trace.gaps[0].why


def test_the_devices_of_a_cpu_trace_are_made_from_its_threads(tmp_path: Path) -> None:
    def op(identifier: int, offset: int, duration: int, ordinal: int) -> bytes:
        stats = block(4, number(1, 1) + number(7, 10 + identifier)) + block(4, number(1, 2) + number(4, ordinal))
        return event(identifier, offset, duration, stats)

    lines = block(3, number(1, 2**64 - 9) + block(2, "pool/1") + op(1, 0, 5 * US, 0) + op(2, US, US, 0))
    lines += block(3, number(1, 6) + block(2, "pool/2") + op(3, 2 * US, US, 1) + event(4, 3 * US, 1))
    names = {1: "while.3", 2: "dot.1", 3: "all-reduce.2", 4: "end: all-reduce.2"}
    stats = {1: "hlo_op", 2: "device_ordinal", 11: "while.3", 12: "dot.1", 13: "all-reduce.2"}
    (tmp_path / "cpu.xplane.pb").write_bytes(plane("/host:CPU", lines, names, stats))
    trace = read_trace(tmp_path / "cpu.xplane.pb")
    ran = [[(d.streams[int(s)], trace.strings[int(o)]) for s, o in zip(d.kernels.stream, d.kernels.op, strict=True)]
           for d in trace.devices]  # fmt: skip
    assert ran == [[("pool/1", "dot.1")], [("pool/2", "all-reduce.2")]], "a loop only contains other ops"
    assert [d.kind for d in trace.devices] == ["cpu", "cpu"]


def test_devices_can_be_read_one_at_a_time(made: Path) -> None:
    file = TraceFile(made)
    assert [device.id for device in file.devices()] == [0, 1, 2]
    assert sum(len(thread.events) for thread in file.threads()) > 0
    assert file.cpu_devices() == []


def test_the_recorded_h200_trace_is_read_whole() -> None:
    trace = read_trace(H200)
    (device,) = trace.devices
    assert (len(device.kernels), device.vendor, device.facts["gpu_device_name"]) == (3192, "Nvidia", "NVIDIA H200")
    assert len(trace.programs) == 31
    assert trace.versions == {"jax_version": "0.11.2", "jaxlib_version": "0.11.2"}
    assert trace.gaps == []
    assert len(trace.memory) == 32
    full = fullest(trace)
    assert full is not None
    assert (full.allocator, round(full.peak / 2**30, 2), round(full.limit / 2**30, 2)) == ("GPU_0_bfc", 11.15, 69.9)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded traces beside the repository (../shared)")
def test_the_synthetic_trace_with_known_truth_gives_that_truth() -> None:
    truth = json.loads((SHARED / "xplane" / "synthetic_8gpu_straggler5.truth.json").read_text())["truth"]
    trace = read_trace(SHARED / "xplane" / "synthetic_8gpu_straggler5.xplane.pb")
    for name, known in truth.items():
        found = whole(trace, int(name.removeprefix("GPU:")))
        assert found.compute == known["compute_us"] * US
        assert found.exposed_comm == known["exposed_comm_us"] * US
        assert found.overlapped_comm + found.exposed_comm == known["total_comm_us"] * US
        assert found.idle + found.host_gap == known["idle_us"] * US


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded traces beside the repository (../shared)")
def test_a_real_cpu_trace_has_its_devices_steps_and_collectives() -> None:
    trace = read_trace(SHARED / "xplane" / "cpu_train_step.xplane.pb")
    assert [device.id for device in trace.devices] == [0, 1, 2, 3]
    for device in trace.devices:
        seen = view(trace, device, {})
        assert [step.number for step in seen.steps] == [0, 1, 2]
        counts = {cost.name: cost.count for cost in seen.by_class()}
        assert (counts["all-gather"], counts["all-reduce"], counts["all-to-all"]) == (3 * 26, 3 * 7, 3 * 2)


@pytest.mark.parametrize(
    ("recipe", "dominant"),
    [
        (Recipe(gpus=2, steps=3, layers=2, kernels=4, host_gap_us=5000), "host_gap"),
        (Recipe(gpus=2, steps=3, layers=2, kernels=4, copy_us=5000), "copy"),
        (Recipe(gpus=2, steps=3, layers=2, kernels=4, transfer_us=900, overlap=0.1), "exposed_comm"),
        (Recipe(gpus=2, steps=3, layers=2, kernels=12, overlap=0.0), "compute"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_cost_that_was_built_in_is_the_largest_bucket(recipe: Recipe, dominant: str, tmp_path: Path) -> None:
    write_one(recipe, tmp_path / "x.xplane.pb")
    trace = read_trace(tmp_path / "x.xplane.pb")
    for device in trace.devices:
        seen = view(trace, device, {})
        assert len(seen.steps) == recipe.steps
        shares = vars(seen.total) | {"overlapped_comm": 0}
        assert max(shares, key=shares.__getitem__) == dominant
        assert seen.total.total == sum(step.span for step in seen.steps)
