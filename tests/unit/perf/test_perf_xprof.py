"""Our figures against xprof's on the same files (tests/data/perf/xprof_figures.json says how those were made)."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from conftest import ROOT
from trackwalker.perf.analysis.device_view import DeviceView, view
from trackwalker.perf.formats.model import PS_PER_US
from trackwalker.perf.formats.reader import read_trace

DATA = ROOT / "tests" / "data" / "perf"
FIGURES = json.loads((DATA / "xprof_figures.json").read_text())
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="module")
def h200() -> DeviceView:
    trace = read_trace(DATA / "h200.xplane.pb.gz")
    return view(trace, trace.devices[0], {})


def test_device_busy_time_of_each_step_agrees(h200: DeviceView) -> None:
    theirs = [step["busy_ms"] for step in FIGURES["h200"]["overview_page_steps"]]
    ours = [buckets.busy / (1000 * PS_PER_US) for buckets in h200.buckets]
    assert ours == pytest.approx(theirs, rel=0.01)
    assert ours[:3] == pytest.approx(theirs[:3], rel=1e-4), "the last step ends differently, see the docs"


def test_every_kernel_has_the_same_count_and_the_same_time(h200: DeviceView) -> None:
    kernels, names = h200.device.kernels, h200.trace.strings
    counts: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for index, start, end in zip(kernels.name.tolist(), kernels.start.tolist(), kernels.end.tolist(), strict=True):
        counts[names[index]] += 1
        spent[names[index]] += end - start
    for name, (count, us) in FIGURES["h200"]["kernel_stats"].items():
        assert counts[name] == count, name
        assert spent[name] / PS_PER_US == pytest.approx(us, rel=1e-6), name
    left = set(spent) - set(FIGURES["h200"]["kernel_stats"])
    assert {name for name in left if not name.startswith("Mem")} == set(), "it leaves out copies and fills only"


def test_the_ten_kernels_that_cost_most_are_the_same(h200: DeviceView) -> None:
    assert [cost.name for cost in h200.by_kernel(10)] == list(FIGURES["h200"]["kernel_stats"])[:10]


def test_step_times_differ_by_the_gap_before_the_next_step_only(h200: DeviceView) -> None:
    for step, theirs in list(zip(h200.steps, FIGURES["h200"]["overview_page_steps"], strict=True))[:3]:
        kernels = h200.device.kernels
        last = max(int(e) for s, e in zip(kernels.start, kernels.end, strict=True) if step.start <= s < step.end)
        quiet = step.end - last
        assert (step.span - quiet) / (1000 * PS_PER_US) == pytest.approx(theirs["step_ms"], rel=0.005)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded traces beside the repository (../shared)")
@pytest.mark.parametrize("name", sorted(FIGURES["mi300x"]["hlo_stats"]))
def test_time_by_instruction_on_amd_agrees(name: str) -> None:
    trace = read_trace(SHARED / "mi300x" / f"{name}.xplane.pb")
    spent: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for device in trace.devices:
        kernels = device.kernels
        for op, start, end in zip(kernels.op.tolist(), kernels.start.tolist(), kernels.end.tolist(), strict=True):
            spent[trace.strings[op]] += end - start
            counts[trace.strings[op]] += 1
    for op, (count, us) in FIGURES["mi300x"]["hlo_stats"][name].items():
        assert (counts[op], spent[op] / PS_PER_US) == (count, pytest.approx(us, rel=1e-6))
