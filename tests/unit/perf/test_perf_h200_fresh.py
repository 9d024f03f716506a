"""Traces that `bench/h200_traces.py --make` and a PyTorch profiler made on a real H200: the built-in cost is named.

They were made after the classes were written and nothing was changed to fit their shares.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.job.layout import Job
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.perf.analysis.result import PerfReport, TracePart

FOLDER = Path(__file__).parents[2] / "data" / "perf" / "h200_fresh"
MOVING = {"moe-routing", "gather-scatter", "sort"}


def report_of(name: str) -> tuple[PerfReport, TracePart]:
    report = analyse(Job(name, None, None), Options(traces=[FOLDER / name]))
    assert report.trace is not None
    return report, report.trace


@pytest.mark.parametrize(
    ("name", "bucket", "kinds", "step_ms"),
    [
        ("dense.xplane.pb.gz", "compute", {"gemm"}, 155),
        ("moe.xplane.pb.gz", "compute", MOVING, 7.24),
        ("host.xplane.pb.gz", "host_gap", set(), 51),  # 50 of them asleep
        ("copy.xplane.pb.gz", "copy", {"copy-d2h", "copy-h2d"}, 40),
        ("kineto.json.gz", "compute", {"gemm"}, 6.4),
    ],
)
def test_the_cost_that_was_built_in_leads(name: str, bucket: str, kinds: set[str], step_ms: float) -> None:
    report, trace = report_of(name)
    assert max(trace.buckets, key=lambda b: b.share).name == bucket
    assert sum(b.share for b in trace.buckets) == pytest.approx(1, abs=0.005)
    assert trace.step_s * 1e3 == pytest.approx(step_ms, rel=0.02)
    if kinds:
        ours = sum(row.share for row in trace.kinds if row.name in kinds)
        assert ours > max(row.share for row in trace.kinds if row.name not in kinds)
    assert report.missing == [] or all("device" not in m.why for m in report.missing)


def test_a_sleeping_host_is_named_with_its_frame() -> None:
    report, _ = report_of("host.xplane.pb.gz")
    assert "sleep" in report.fixes[0].says


def test_the_last_step_without_its_wait_is_left_out() -> None:
    _, trace = report_of("host.xplane.pb.gz")
    assert trace.steps == 4  # of five: behind the last kernel the trace ends
