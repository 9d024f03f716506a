"""Gaps that the host caused, and the frame that took its time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from trackwalker.perf.analysis.classes import Engine
from trackwalker.perf.analysis.device_view import view
from trackwalker.perf.analysis.host import compilations, host_gaps, launches
from trackwalker.perf.analysis.step_buckets import timeline
from trackwalker.perf.formats.model import NONE, Device, HostEvents, HostThread, Kernels, Step, Strings, Trace
from trackwalker.perf.formats.reader import read_trace

H200 = ROOT / "tests" / "data" / "perf" / "h200.xplane.pb.gz"


def thread(number: int, name: str, strings: Strings, rows: list[tuple[int, int, str, int]]) -> HostThread:
    rows = sorted(rows, key=lambda r: (r[0], -r[1]))
    events = HostEvents.of(
        len(rows), start=[r[0] for r in rows], end=[r[1] for r in rows], name=[strings.add(r[2]) for r in rows],
        correlation=[r[3] for r in rows],
    )  # fmt: skip
    return HostThread(number, name, events)


def traced(threads: list[list[tuple[int, int, str, int]]]) -> Trace:
    """Two kernels, at 0-100 and 500-600, launched under the numbers 1 and 2."""
    strings = Strings()
    kernels = Kernels.of(
        2, start=[0, 500], end=[100, 600], correlation=[1, 2], name=[strings.add("a"), strings.add("b")]
    )
    made = [thread(n, f"thread{n}", strings, rows) for n, rows in enumerate(threads)]
    return Trace(Path("x"), strings, [Device(0, "/device:GPU:0", "gpu", kernels)], made)


def examined(trace: Trace):
    kernels = trace.devices[0].kernels
    launched = launches(trace, kernels)
    line = timeline(kernels, np.array([Engine.COMPUTE] * 2), launched.start)
    return line.buckets([Step(None, 0, 600)])[0], host_gaps(trace, kernels, line, launched)


MAIN = [
    (0, 1000, "$train.py:10 main", NONE),
    (90, 420, "$data.py:5 next_batch", NONE),
    (120, 400, "$io.py:9 read", NONE),
]


def test_a_late_launch_makes_the_gap_the_hosts_and_names_the_frame_with_its_callers() -> None:
    launch = [(0, 5, "cuLaunchKernel", 1), (450, 455, "cuLaunchKernel", 2)]
    buckets, gaps = examined(traced([MAIN + launch]))
    assert (buckets.host_gap, buckets.idle, buckets.compute) == (400, 0, 200)
    (gap,) = gaps
    assert (gap.start, gap.end, gap.kernel, gap.thread) == (100, 500, "b", "thread0")
    assert gap.frame == "io.py:9 read"
    assert gap.stack == ("train.py:10 main", "data.py:5 next_batch")


def test_a_launching_thread_that_did_nothing_points_to_the_python_thread() -> None:
    launch = [(0, 5, "cuLaunchKernel", 1), (450, 455, "cuLaunchKernel", 2)]
    _, (gap,) = examined(traced([launch, MAIN]))
    assert (gap.frame, gap.thread) == ("io.py:9 read", "thread1")


def test_a_kernel_launched_in_time_leaves_the_gap_to_the_device() -> None:
    buckets, gaps = examined(traced([[(0, 5, "cuLaunchKernel", 1), (60, 65, "cuLaunchKernel", 2)]]))
    assert (buckets.host_gap, buckets.idle, gaps) == (0, 400, [])


def test_without_launches_in_the_trace_nobody_is_blamed() -> None:
    buckets, gaps = examined(traced([MAIN]))
    assert (buckets.host_gap, buckets.idle, gaps) == (0, 400, [])


def test_a_gap_with_no_host_event_in_it_says_so() -> None:
    _, (gap,) = examined(traced([[(0, 5, "cuLaunchKernel", 1), (450, 455, "cuLaunchKernel", 2)]]))
    assert gap.frame == "nothing traced"


def test_compilations_while_the_trace_ran_are_found() -> None:
    trace = traced(
        [[*MAIN, (130, 390, "backend_compile_and_load", NONE), (131, 380, "$compiler.py:2 backend_compile", NONE)]]
    )
    assert compilations(trace) == [(130, 390)]


@pytest.mark.parametrize("offset", [0, 2**40])
def test_launches_are_joined_by_number_however_large_the_numbers_are(offset: int) -> None:
    rng = np.random.default_rng(3)
    numbers = rng.permutation(np.arange(1, 51)) * (1 if not offset else 10**9) + offset
    strings = Strings(["k"])
    kernels = Kernels.of(50, start=np.arange(50) * 10, end=np.arange(50) * 10 + 5, correlation=numbers)
    kernels.correlation[7] = NONE
    rows = [(int(n % 1000), int(n % 1000) + 1, "launch", int(n)) for n in numbers[:40]]
    trace = Trace(Path("x"), strings, [], [thread(0, "t", strings, rows[:20]), thread(1, "u", strings, rows[20:])])
    found = launches(trace, kernels)
    assert found.start.tolist() == [NONE if i == 7 or i >= 40 else int(n % 1000) for i, n in enumerate(numbers)]
    assert set(found.thread[:20].tolist()) <= {0, NONE}
    assert set(found.thread[20:40].tolist()) == {1}


def test_the_recorded_trace_waits_for_the_host_once_a_step_to_fetch_the_loss() -> None:
    trace = read_trace(H200)
    seen = view(trace, trace.devices[0], {})
    assert [step.number for step in seen.steps] == [251, 252, 253, 254]
    for buckets, step in zip(seen.buckets, seen.steps, strict=True):
        assert buckets.total == step.span
        assert buckets.host_gap / step.span < 0.02
    longest = seen.host_gaps(10)
    assert all("np.asarray(jax.Array)" in gap.stack for gap in longest[:4])
    assert {gap.frame for gap in longest[:4]} == {"array.py:629 _value"}
