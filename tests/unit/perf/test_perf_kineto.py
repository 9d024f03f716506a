"""PyTorch's traces through the same model: steps, buckets, collectives, parts and stragglers, in every form of file."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from kineto_maker import BASE_NS, FIRST_US, NELEMS, SLEEP, US, TorchJob, rank_events, text, truth, write

from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.perf.analysis.detail import read_detail, views, window_of
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.perf.analysis.result import PerfReport
from trackwalker.perf.formats import chrome, reader
from trackwalker.perf.formats.find import traces_in
from trackwalker.perf.formats.reader import read_trace
from trackwalker.perf.ranks.compare import compare
from trackwalker.perf.ranks.gather import gather, reduce_file

JOB = TorchJob()
BROKEN = b'{"ph": "X", "cat": "cpu_op", "name": "a\\q", "pid": 1, "tid": 1, "ts": 1}'


def report_of(*paths: Path) -> PerfReport:
    return analyse(Job("torch", None, None), Options(traces=list(paths)))


def put(folder: Path, content: bytes, name: str = "rank0.json") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def buckets(path: Path) -> list[dict[str, int]]:
    (table,) = reduce_file(path)
    return [asdict(bucket) for bucket in table.buckets]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (text(JOB, 0), "rank0.pt.trace.json"),
        (text(JOB, 0, base_last=True), "trace.json"),
        (text(JOB, 0, wrapped=False), "bare.json"),
        (gzip.compress(text(JOB, 0)), "rank0.pt.trace.json.gz"),
        (text(TorchJob(base=None, first_us=1_743_521_598_000_000.0), 0), "absolute.json"),
        (text(TorchJob(hip=True), 0), "misnamed.xplane.pb"),
    ],
)
def test_every_form_of_the_file_gives_the_same_steps_and_buckets(content: bytes, name: str, tmp_path: Path) -> None:
    (table,) = reduce_file(put(tmp_path, content, name))
    assert [step.number for step in table.steps] == [10, 11, 12]
    assert [asdict(bucket) for bucket in table.buckets] == truth(JOB, 0)
    assert [bucket.total for bucket in table.buckets] == [step.span for step in table.steps]
    assert table.gaps == []


@pytest.mark.parametrize("last", [False, True])
def test_a_trace_is_dated_by_its_base_without_reading_its_events(last: bool, tmp_path: Path) -> None:
    window = window_of(put(tmp_path, text(JOB, 0, base_last=last)))
    assert window is not None
    began = (BASE_NS + FIRST_US * 1000) / 1e9
    assert window == pytest.approx((began, began), abs=0.01)
    assert window_of(put(tmp_path, text(TorchJob(base=None), 0))) is None


def test_pieces_of_any_size_give_the_same_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [{"ph": "i", "name": 'a "quoted" \\ {name}]', "args": {"k": ["]}", "\\\\", {"x": '"'}]}}]
    path = put(tmp_path, json.dumps({"schemaVersion": 1, "traceEvents": odd * 3 + rank_events(JOB, 0)}).encode())
    for size in (37, 101, 4096):
        monkeypatch.setattr(chrome, "_PIECE", size)
        assert buckets(path) == truth(JOB, 0)


def test_a_cut_file_gives_what_is_whole_and_says_so(tmp_path: Path) -> None:
    whole = text(JOB, 0)
    at = whole.index(b"ProfilerStep#12")
    for content in (whole[:at], gzip.compress(whole)[: int(len(gzip.compress(whole)) * 0.9)]):
        (table,) = reduce_file(put(tmp_path, content))
        assert [asdict(b) for b in table.buckets][:1] == truth(JOB, 0)[:1]
        assert [gap.what for gap in table.gaps] == ["the end of the trace"]
    report = report_of(put(tmp_path, whole[:at]))
    assert report.trace is not None
    assert any(m.why.startswith("rank0.json breaks off after") for m in report.missing)


def test_an_event_that_is_no_json_costs_itself_only(tmp_path: Path) -> None:
    content = text(JOB, 0, wrapped=False).replace(b"[", b"[" + BROKEN + b", ", 1)
    content = content.replace(b'"registers per thread": 64', b'"registers per thread": NaN', 1)
    path = put(tmp_path, content)
    assert buckets(path) == truth(JOB, 0)
    assert [gap.what for gap in read_trace(path).gaps] == ["1 events"]


def test_kernels_belong_to_modules_passes_and_the_optimiser(tmp_path: Path) -> None:
    _, (view,), _ = views(put(tmp_path, text(JOB, 0)))
    parts = {(cost.part, cost.phase): cost.ps // JOB.steps // US for cost in view.by_part()}
    assert {key: parts[key] for key in parts if key[0] != "other"} == {
        ("attention", "forward"): 100,
        ("attention", "backward"): 100,
        ("mlp", "forward"): 100,
        ("mlp", "backward"): 100,
        ("optimiser", "optimiser"): 40,
    }
    kinds = {cost.name for cost in view.by_class()}
    assert kinds == {"gemm", "all-reduce", "optimiser", "copy-h2d"}
    gap = view.host_gaps()[0]
    assert (gap.frame, gap.thread, gap.span) == ("<built-in function sleep>", "main thread", SLEEP * US)


def test_the_slow_rank_is_named_though_files_are_in_another_order(tmp_path: Path) -> None:
    job = TorchJob(ranks=4, steps=4, slow=(1, 2))
    tables, gaps = gather(write(job, tmp_path))
    assert gaps == []
    assert [table.device for table in tables] == [0, 1, 2, 3]
    assert [[asdict(b) for b in table.buckets] for table in tables] == [truth(job, rank) for rank in range(4)]
    across = compare(tables)
    assert [s.rank for s in across.stragglers] == [1]
    (row,) = across.collectives
    assert (row.kind, row.members, row.bytes) == ("all-reduce", 4, 2 * NELEMS)
    assert row.algbw_gb_s == pytest.approx(2 * NELEMS / 120e-6 / 1e9)
    assert row.busbw_gb_s == pytest.approx(row.algbw_gb_s * 1.5)


def test_groups_beside_each_other_are_one_collective_of_several_groups(tmp_path: Path) -> None:
    tables, _ = gather(write(TorchJob(ranks=4, pair=True), tmp_path))
    names = {op: planned.groups for op, planned in tables[0].planned.items()}
    assert names == {
        f"all-reduce default_pg {2 * NELEMS} B": ((0, 1, 2, 3),),
        "all-reduce 2 ranks by 1 128 B": ((0, 1), (2, 3)),
    }
    assert compare(tables).gaps == []


@pytest.mark.parametrize(
    ("told", "size", "groups"),
    [
        ({"dtype": "Float8_e4m3fn"}, NELEMS, ((0,),)),
        ({"dtype": "c10::BFloat16", "Collective name": "_allgather_base", "Out msg nelems": 8}, 2 * NELEMS, ((0,),)),
        ({"dtype": "Odd"}, 0, ((0,),)),
        ({"Group size": 64, "Process Group Ranks": "[0, 8, 16, ...]"}, 2 * NELEMS, (tuple(range(0, 512, 8)),)),
        ({"Group size": 64, "Process Group Ranks": "[0, 8, 9, ...]"}, 2 * NELEMS, ()),
    ],
)
def test_sizes_and_groups_are_told_by_the_kernel(told: dict, size: int, groups: tuple, tmp_path: Path) -> None:
    (table,) = reduce_file(put(tmp_path, text(TorchJob(group=told), 0)))
    (planned,) = table.planned.values()
    assert (planned.bytes, planned.groups) == (size, groups)
    assert bool(table.gaps) == (size == 0)


def test_amd_traces_have_their_vendor_and_their_communication(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, text(TorchJob(hip=True), 0)))
    assert trace.devices[0].vendor == "AMD"
    assert buckets(trace.path) == truth(JOB, 0)
    assert report_of(trace.path).trace is not None


def test_memory_events_tell_how_full_the_device_was(tmp_path: Path) -> None:
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 4242, "tid": 4242}
    more = {"Device Type": 1, "Device Id": 0, "Addr": 1, "Total Reserved": 8}
    used = [(FIRST_US + 5.0, 3), (FIRST_US + 9.0, 40), (FIRST_US + 12.0, 7)]
    rows = [event | {"ts": ts, "args": more | {"Bytes": 1, "Total Allocated": gib << 30}} for ts, gib in used]
    whole = json.loads(text(JOB, 0))
    whole["traceEvents"] += rows
    report = report_of(put(tmp_path, json.dumps(whole).encode()))
    assert report.trace is not None
    assert "device memory: at most 40.0 of 79.2 GiB in use (GPU_0_torch)" in report.trace.notes


def test_the_report_is_the_same_one_and_asks_for_no_program(tmp_path: Path) -> None:
    report = report_of(*write(TorchJob(ranks=2, steps=4, slow=(0, 3)), tmp_path))
    assert report.trace is not None
    assert [row.device for row in report.trace.stragglers] == ["host_900.0 gpu 0"]
    assert report.fixes[0].rule == "straggler"
    assert {m.what for m in report.missing} == set()
    assert report.utilisation is None or report.utilisation.mfu is None


def test_json_traces_are_found_in_a_folder_by_name_or_else_by_content(tmp_path: Path) -> None:
    put(tmp_path, b'{"schema": "trackwalker.perf/1"}', "perf.json")
    own = put(tmp_path, text(JOB, 0), "my_trace.json")
    assert traces_in(tmp_path) == [own]
    named = put(tmp_path, text(JOB, 0), "w.1.pt.trace.json")
    assert traces_in(tmp_path) == [named]


def test_steps_without_markers_are_found_by_what_repeats(tmp_path: Path) -> None:
    rows = [row for row in rank_events(TorchJob(steps=6), 0) if not str(row["name"]).startswith("ProfilerStep")]
    (table,) = reduce_file(put(tmp_path, json.dumps({"schemaVersion": 1, "traceEvents": rows}).encode()))
    assert [step.number for step in table.steps] == [None] * 6
    steady = [asdict(bucket) for bucket in table.buckets]
    assert steady[:5] == truth(JOB, 0)[:1] * 5


@pytest.mark.parametrize("seed", range(3))
def test_damage_ends_in_a_gap_or_a_plain_error(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    values = [b"{}", b"[]", b"null", b"-1", b"1e300", b'"x"', b"NaN", b"9" * 25, b"true"]
    for raw in (text(TorchJob(steps=2), 0), gzip.decompress(jax_text())):
        for _ in range(5):
            content = bytearray(raw)
            for _ in range(8):
                places = list(re.finditer(rb':\s*("[^"]*"|[-0-9.]+)', bytes(content)))
                start, end = rng.choice(places).span(1)
                content[start:end] = rng.choice(values)
                content[rng.randrange(len(content))] = rng.randrange(256)
            path = put(tmp_path, bytes(content))
            with contextlib.suppress(TrackwalkerError):
                window_of(path)
                read_detail(path)
                for table in reduce_file(path):
                    assert [b.total for b in table.buckets] == [s.span for s in table.steps]


def test_a_trace_without_kernels_says_so(tmp_path: Path) -> None:
    rows = [row for row in rank_events(JOB, 0) if row.get("cat") not in ("kernel", "gpu_memcpy")]
    trace = read_trace(put(tmp_path, json.dumps({"schemaVersion": 1, "traceEvents": rows}).encode()))
    assert [gap.what for gap in trace.gaps] == ["the device's timeline"]


def jax_text() -> bytes:
    def meta(name: str, value: str, **place: int) -> dict[str, object]:
        return {"ph": "M", "name": name, "args": {"name": value}, **place}

    rows: list[dict[str, object]] = [
        meta("process_name", "/device:GPU:0", pid=1), meta("process_name", "/host:CPU", pid=2),
        meta("thread_name", "Stream #14(Compute)", pid=1, tid=14), meta("thread_name", "XLA Ops", pid=1, tid=3),
        meta("thread_name", "python", pid=2, tid=9),
    ]  # fmt: skip
    for step in range(3):
        at = 100.0 + 1000.0 * step
        for i, name in enumerate(("gemm", "loop_add_fusion", "ncclDevKernel_AllReduce_Sum_f32")):
            op = {"hlo_op": f"op.{i}", "hlo_module": "jit_step", "correlation_id": str(1 + step * 3 + i)}
            rows.append({"ph": "X", "pid": 1, "tid": 14, "ts": at + 100 * i, "dur": 100.0, "name": name, "args": op})
            call = {"correlation_id": op["correlation_id"]}
            rows.append({"ph": "X", "pid": 2, "tid": 9, "ts": at - 5, "dur": 1.0, "name": "cuLaunch", "args": call})
        rows.append({"ph": "X", "pid": 1, "tid": 3, "ts": at, "dur": 300.0, "name": "jit_step"})
        rows.append(
            {"ph": "X", "pid": 2, "tid": 9, "ts": at - 9, "dur": 20.0, "name": "train", "args": {"step_num": str(step)}}
        )
    head = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
    return gzip.compress(json.dumps(head | {"traceEvents": [*rows, {}]}).encode())


def test_the_json_of_jax_is_read_with_the_advice_to_give_the_xplane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, jax_text(), "host.trace.json.gz")
    trace = read_trace(path)
    assert [gap.what for gap in trace.gaps] == ["the whole trace"]
    (table,) = reduce_file(path)
    assert [step.number for step in table.steps] == [0, 1, 2]
    first = asdict(table.buckets[0])
    assert (first["compute"], first["exposed_comm"], first["host_gap"]) == (200 * US, 100 * US, 700 * US)
    spans = 3 * 8
    for cap, said in ((spans, True), (spans + 1, False)):
        monkeypatch.setattr(reader, "CAP", cap)
        told = [gap for gap in read_trace(path).gaps if gap.what == "the end of the trace"]
        assert bool(told) == said
        assert all("exactly" in gap.why and "xplane.pb" in gap.remedy for gap in told)
