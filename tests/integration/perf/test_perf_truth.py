"""Steps whose dominant cost is built in, on two real JAX processes with gloo between them: the report must name it."""

from __future__ import annotations

import pytest
from jax_ranks import run_ranks

from trackwalker.job.layout import Job
from trackwalker.perf.analysis.report import Options, analyse
from trackwalker.perf.analysis.result import PerfReport, TracePart

pytestmark = [pytest.mark.timeout(240)]
RANKS, STEPS = 2, 4


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PerfReport]:
    """The report of each kind of step."""
    pytest.importorskip("jax", reason="JAX is not installed: pip install -e '.[tiny]'")
    folder = tmp_path_factory.mktemp("costs")
    run_ranks("traced_cost.py", RANKS, folder)
    return {kind.name: analyse(Job(kind.name, None, None), Options(traces=[kind])) for kind in folder.iterdir()}


def part(report: PerfReport) -> TracePart:
    assert report.trace is not None
    return report.trace


def dominant(report: PerfReport, own: bool = False) -> str:
    """The bucket with most of the step, or of what ranks do by themselves: on busy cores one waits for the other."""
    buckets = [bucket for bucket in part(report).buckets if not (own and bucket.name == "exposed_comm")]
    return max(buckets, key=lambda bucket: bucket.share).name


def test_matrix_products_are_compute_and_named_as_such(reports: dict[str, PerfReport]) -> None:
    report = reports["compute"]
    assert dominant(report, own=True) == "compute"
    computed = [row for row in part(report).kinds if row.name != "all-reduce"]
    assert computed[0].name == "gemm"
    assert computed[0].seconds > 2 * computed[1].seconds


def test_a_large_sum_over_ranks_is_exposed_communication(reports: dict[str, PerfReport]) -> None:
    report = reports["communication"]
    assert dominant(report) == "exposed_comm"
    assert report.fixes[0].rule in ("exposed-communication", "straggler")  # on two busy cores one rank may be late
    row = part(report).collectives[0]
    assert (row.kind, row.bytes, row.group_size) == ("all-reduce", 2048 * 2048 * 4, RANKS)
    assert row.busbw_gb_s


def test_a_sleep_between_steps_is_the_hosts_and_its_call_is_named(reports: dict[str, PerfReport]) -> None:
    report = reports["host"]
    assert dominant(report) == "host_gap"
    assert report.fixes[0].rule == "host-bound"
    assert "sleep" in part(report).gaps[0].name
    assert "sleep" in report.fixes[0].says


def test_moving_data_about_is_named_though_it_looks_like_compute(reports: dict[str, PerfReport]) -> None:
    report = reports["copy"]
    assert dominant(report, own=True) == "compute"  # CPUs have no copy engine: copies are operations
    assert next(row.name for row in part(report).kinds if row.name != "all-reduce") == "layout"
    assert "traced_cost.py:" in part(report).ops[0].source


def test_all_steps_of_all_ranks_are_found_and_their_buckets_sum_up(reports: dict[str, PerfReport]) -> None:
    for kind, report in reports.items():
        trace = part(report)
        assert (trace.steps, len(trace.devices)) == (STEPS, RANKS), kind
        for device in trace.devices:
            assert sum(bucket.seconds for bucket in device.buckets) == pytest.approx(device.step_s)
