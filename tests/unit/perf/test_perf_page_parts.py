"""The performance page without a browser: lanes that keep the time, escaping, size, and the server's manners."""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_maker import Recipe, write_ranks

from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.perf.analysis.diff import diff
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.perf.analysis.result import JobPart, Missing, PerfReport, RankSteps
from trackwalker.perf.analysis.step_lanes import STATES, DeviceLanes, Lane, StepLanes, merge, step_lanes
from trackwalker.perf.hlo.programs import program_part, read_program
from trackwalker.report.perf.charts import duration, heat_map, segments
from trackwalker.report.perf.page import diff_page, perf_page
from trackwalker.report.perf.serve import PageServer

H200 = Path(__file__).parents[2] / "data" / "perf" / "h200.xplane.pb.gz"


@pytest.fixture(scope="module")
def h200() -> PerfReport:
    return analyse(Job(H200.name, None, None), Options(traces=[H200]))


@given(
    lengths=st.lists(st.integers(1, 5_000_000), min_size=1, max_size=300),
    gap=st.integers(0, 100_000),
    most=st.integers(4, 60),
)
@settings(max_examples=60, deadline=None)
def test_bars_that_are_put_together_keep_count_and_time(lengths: list[int], gap: int, most: int) -> None:
    length = np.array(lengths, np.int64) * 1000  # whole nanoseconds, so that nothing is rounded
    start = np.concatenate(([0], np.cumsum(length + gap * 1000)[:-1]))
    bars = merge(start, start + length, int(start[-1] + length[-1]), most)
    assert bars.count.sum() == len(lengths)
    assert bars.busy.sum() == sum(lengths)
    assert (bars.start[1:] >= (bars.start + bars.length)[:-1]).all()  # in order, none over another
    assert len(bars.start) <= max(2 * most, 1)
    assert (length[bars.largest] // 1000 <= bars.length).all()


def test_no_kernels_are_no_bars() -> None:
    nothing = np.zeros(0, np.int64)
    assert len(merge(nothing, nothing, 10, 5).start) == 0


def test_the_state_row_of_a_real_step_has_the_time_of_its_buckets(h200: PerfReport) -> None:
    assert h200.trace is not None
    lanes = step_lanes(h200.trace)
    device = lanes.devices[0]
    spent: Counter[str] = Counter()
    for kind, length in zip(device.state.kind, device.state.length, strict=True):
        spent[kind] += int(length)
    assert set(spent) <= set(STATES)
    assert sum(spent.values()) == pytest.approx(lanes.span_ns, rel=1e-4)
    step = min(h200.trace.bucket_samples["compute"], key=lambda s: abs(s * 1e9 - spent["compute"]))
    assert spent["compute"] / 1e9 == pytest.approx(step, rel=1e-3)
    assert sum(int(lane.busy.sum()) for lane in device.streams) <= 1.01 * lanes.span_ns
    assert any("attention" in name for lane in device.streams for name in lane.name)


def test_devices_whose_clocks_differ_are_drawn_on_one(tmp_path: Path) -> None:
    recipe = Recipe(
        gpus=4, steps=4, layers=8, kernels=3, slow={2: 1.5}, clock_error_us={1: 700, 3: -900}, start_skew_us=5000
    )
    write_ranks(recipe, tmp_path, gpus_per_host=2)
    trace = analyse(Job("made", None, None), Options(traces=[tmp_path])).trace
    assert trace is not None
    lanes = step_lanes(trace)
    assert [d.device for d in lanes.devices] == [d.device for d in trace.devices]
    for place in range(8):  # ranks leave a collective together
        ends = {int(d.streams[1].start[place] + d.streams[1].length[place]) for d in lanes.devices}
        assert max(ends) - min(ends) <= 1000
    assert trace.rank_steps is not None
    late = {
        device: sum(v or 0 for v in row)
        for device, row in zip(trace.rank_steps.devices, trace.rank_steps.late_s, strict=True)
    }
    assert max(late, key=lambda device: late[device]) == "host1.proc0 gpu 0"


def test_collectives_as_compiled_say_who_talks_and_what_runs_beside() -> None:
    program, _ = program_part(read_program(H200.with_name("train_step.hlo.txt")))
    rows = {row.kind for row in program.planned}
    assert rows == set(program.collectives)
    assert all(row.groups and row.runs > 0 and row.bytes > 0 for row in program.planned)
    assert any(row.asynchronous and row.between for row in program.planned)


def test_a_trace_that_is_gone_leaves_a_page_without_lanes(h200: PerfReport) -> None:
    assert h200.trace is not None
    moved = h200.trace.model_copy(update={"files": ["gone/h200.xplane.pb.gz"]})
    lanes = step_lanes(moved)
    assert lanes.devices == []
    assert lanes.left_out
    page = perf_page(h200, lanes)
    assert 'id="timeline"' not in page
    assert "run trackwalker perf where the traces are" in page


def test_only_the_pages_own_style_and_script_are_allowed(h200: PerfReport) -> None:
    page = perf_page(h200)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    said = policy[1].replace("&#39;", "'")
    assert "unsafe" not in said
    assert "default-src 'none'" in said
    for tag in ("style", "script"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert text is not None
        digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in said
    assert " style=" not in page
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:)", page)


def worst_lanes() -> StepLanes:
    """As many bars as a drawing may have, each with a name of its own."""
    count = 4_000
    start = np.arange(count, dtype=np.int64) * 2_000_000
    names = [f"{i:06d}" + "x" * 200 for i in range(count)]
    lane = Lane("s" * 99, start, start * 0 + 1_999_999, names, ["gemm"] * count, start * 0 + 999, start * 0 + 1_999_999)
    state = Lane("state", start, lane.length, ["compute"] * count, ["compute"] * count, lane.count, lane.busy)
    return StepLanes([DeviceLanes(f"device {i}", 1, state, [lane]) for i in range(4)], int(start[-1]), [])


def test_the_page_stays_below_three_megabytes(h200: PerfReport) -> None:
    assert h200.trace is not None
    big = h200.model_copy(deep=True)
    assert big.trace is not None
    row = big.trace.ops[0].model_copy(update={"name": "n" * 3000, "path": "p/" * 1500})
    big.trace.ops = [row] * 5000
    big.trace.kernels = [row] * 5000
    devices = [f"host{i:05d} gpu 0" for i in range(1024)]
    values: list[list[float | None]] = [[0.1] * 60 for _ in devices]
    big.trace.rank_steps = RankSteps(devices=devices, steps=list(range(60)), step_s=values, late_s=values)
    big.missing = [Missing(what="w" * 2000, why="y" * 2000, do="d" * 2000)] * 1000
    assert len(perf_page(big, worst_lanes()).encode()) < 3_000_000


def test_a_report_of_a_log_alone_says_what_would_tell_more() -> None:
    gap = Missing(what="traces", why="no *.xplane.pb <here>", do="capture one")
    page = perf_page(PerfReport(job=JobPart(id="7", name="toy", dir=""), missing=[gap]))
    assert "No trace" in page
    assert "no *.xplane.pb &lt;here&gt;" in page


def test_a_comparison_has_a_page_of_its_own(h200: PerfReport) -> None:
    slower = h200.model_copy(deep=True)
    assert slower.trace is not None
    slower.job.id = "<b>B</b>"
    page = diff_page(diff(h200, slower))
    assert "&lt;b&gt;B&lt;/b&gt;" in page
    assert 'id="waterfall"' in page


def test_lengths_of_time_are_told_in_their_own_unit() -> None:
    assert [duration(x) for x in (0, 12.5e-6, 0.1798, 3.25)] == ["0 s", "12.5 µs", "179.8 ms", "3.25 s"]


def test_pieces_of_a_bar_add_up() -> None:
    made = segments([("a", "a", 1.0), ("b", "b", 3.0)], 4.0)
    assert [(s.x, s.width, s.share) for s in made] == [("0.00", "250.00", "25.0 %"), ("250.00", "750.00", "75.0 %")]
    assert segments([("a", "a", 0.0)], 0.0)[0].width == "0.00"


def test_the_heat_map_keeps_the_devices_that_are_late() -> None:
    late: list[list[float | None]] = [[0.0, 0.0] for _ in range(200)]
    late[150] = [0.5, None]
    names = [f"gpu {i}" for i in range(200)]
    heat = heat_map(RankSteps(devices=names, steps=[4, 5], step_s=late, late_s=late))
    assert heat is not None
    row = next(cells for _, device, cells in heat.rows if device == "gpu 150")
    assert [shade for _, shade, _ in row] == [4]
    assert "of 200 devices" in heat.note


@pytest.fixture
def server() -> Iterator[PageServer]:
    made = PageServer({"/": ("text/html", "<p>µ</p>"), "/perf.json": ("application/json", "{}")})
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    yield made
    made.close()
    thread.join(10)


def ask(url: str, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=20)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.getheader("Content-Type") or ""


def test_the_server_answers_this_machine_only(server: PageServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert ask(server.url, "/") == (200, "<p>µ</p>", "text/html; charset=utf-8")
    assert ask(server.url, "/perf.json?again")[1] == "{}"
    assert ask(server.url, "/", method="HEAD")[1] == ""
    assert ask(server.url, "/../../etc/passwd")[0] == 404
    assert ask(server.url, "/", host="evil.example:80")[0] == 403
    assert ask(server.url, "/", method="POST")[0] == 501


def test_a_port_in_use_is_said_in_one_line(server: PageServer) -> None:
    with pytest.raises(UsageError, match="cannot listen on port"):
        PageServer({}, int(server.url.rstrip("/").rsplit(":", 1)[1]))
