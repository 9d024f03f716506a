"""Steps from what repeats on the device, and their numbers from the host's markers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from trackwalker.perf.analysis.host import launches
from trackwalker.perf.analysis.steps import find_steps
from trackwalker.perf.formats.model import NONE, Device, HostEvents, HostThread, Kernels, Step, Strings, Trace
from trackwalker.perf.formats.reader import read_trace

SHARED = ROOT.parent / "shared" / "data"
PERIOD = 1_000


def traced(rows: list[tuple[int, int, str]], markers: dict[int, int] | None = None, since: int = -1000) -> Trace:
    """Kernels (start, length, op), each launched 50 before it starts; markers: step -> when the host began it.

    Launches before `since` were not traced.
    """
    strings = Strings()
    rows = sorted(rows)
    start = np.array([r[0] for r in rows])
    numbers = np.arange(1, len(rows) + 1)
    kernels = Kernels.of(
        len(rows), start=start, end=[r[0] + r[1] for r in rows], op=[strings.add(r[2]) for r in rows],
        name=[strings.add(r[2]) for r in rows], program=7, correlation=numbers,
    )  # fmt: skip
    made = HostEvents.of(len(rows), start=start - 50, end=start - 40, correlation=numbers).take(start - 50 >= since)
    marks = markers or {}
    marked = HostEvents.of(len(marks), start=list(marks.values()), end=list(marks.values()), step=list(marks))
    device = Device(0, "/device:GPU:0", "gpu", kernels)
    return Trace(Path("x"), strings, [device], [HostThread(1, "launch", made), HostThread(2, "python", marked)])


def found(trace: Trace) -> list[Step]:
    device = trace.devices[0]
    return find_steps(trace, device, launches(trace, device.kernels).start)


def step(begin: int, loops: int = 8) -> list[tuple[int, int, str]]:
    """An embedding, a loop of layers with three kernels each, a head, an optimiser."""
    layers = [(begin + 50 + 30 * i + 10 * j, 9, f"layer.{j}") for i in range(loops) for j in range(3)]
    ends = [
        (begin + 700, 40, "logits"),
        (begin + 750, 40, "loss"),
        (begin + 800, 90, "adam.1"),
        (begin + 900, 30, "adam.2"),
    ]
    return [(begin, 40, "embed"), *layers, *ends]


def test_a_loop_inside_the_step_is_not_taken_for_steps() -> None:
    rows = [row for n in range(3) for row in step(n * PERIOD)]
    assert found(traced(rows)) == [Step(None, 0, 1000), Step(None, 1000, 2000), Step(None, 2000, 2930)]


def test_one_traced_step_is_one_step() -> None:
    assert found(traced(step(0))) == [Step(None, 0, 930)]


def test_a_step_that_the_trace_cuts_is_left_out() -> None:
    rows = [row for n in range(4) for row in step(n * PERIOD)]
    early = [row for row in rows if row[0] >= 600]  # the end of a step that was launched before the trace began
    assert [s.start for s in found(traced(early, since=900))] == [1000, 2000, 3000]
    late = [row for row in rows if row[0] < 3200]  # the last step's end is missing
    assert [(s.start, s.end) for s in found(traced(late))] == [(0, 1000), (1000, 2000), (2000, 3000)]


def test_markers_number_the_steps_even_when_the_device_lags_behind() -> None:
    rows = [row for n in range(3) for row in step(n * PERIOD)]
    # The host dispatches 60 before the device begins, always within its own marker.
    marks = {17: -60, 18: 940, 19: 1940}
    assert [s.number for s in found(traced(rows, markers=marks))] == [17, 18, 19]


def test_several_runs_under_one_marker_are_one_step() -> None:
    rows = [row for n in range(6) for row in step(n * PERIOD)]
    marks = {4: -60, 5: 1940, 6: 3940}
    steps = found(traced(rows, markers=marks))
    assert [(s.number, s.start, s.end) for s in steps] == [(4, 0, 2000), (5, 2000, 4000), (6, 4000, 5930)]


def test_the_program_that_takes_most_time_decides_and_small_ones_do_not_disturb() -> None:
    rows = [row for n in range(3) for row in step(n * PERIOD)]
    trace = traced(rows + [(n * 500 + 960, 1, "metrics") for n in range(6)])
    kernels = trace.devices[0].kernels
    small = kernels.op == trace.strings.find("metrics")
    kernels.program[small] = 8
    assert [s.start for s in found(trace)] == [0, 1000, 2000]
    kernels.program[:] = NONE  # no ids in the trace: the module's name serves
    kernels.module[:] = np.where(small, trace.strings.add("jit_metrics"), trace.strings.add("jit_train_step"))
    assert [s.start for s in found(trace)] == [0, 1000, 2000]


def test_a_program_compiled_again_in_between_goes_on_with_the_steps() -> None:
    late = [(start, length, f"again.{op}") for n in (3, 4) for start, length, op in step(n * PERIOD) if op != "loss"]
    trace = traced([row for n in range(3) for row in step(n * PERIOD)] + late, {n: n * PERIOD - 60 for n in range(5)})
    kernels = trace.devices[0].kernels
    kernels.module[:] = trace.strings.add("jit_train_step")
    kernels.program[kernels.start >= 3 * PERIOD] = 8
    assert [(s.number, s.start) for s in found(trace)] == [(n, n * PERIOD) for n in range(5)]


def test_nothing_ran_means_no_steps() -> None:
    assert found(traced([])) == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded traces beside the repository (../shared)")
@pytest.mark.parametrize("name", ["jax08_conv_minimal", "jax_legacy_conv_minimal"])
def test_runs_of_a_real_amd_trace_without_markers_are_found(name: str) -> None:
    trace = read_trace(SHARED / "mi300x" / f"{name}.xplane.pb")
    busy = [d for d in trace.devices if (d.kernels.program != NONE).any()]
    for device in busy:
        steps = find_steps(trace, device, launches(trace, device.kernels).start)
        assert 4 <= len(steps) <= 5, "the program ran five times"
