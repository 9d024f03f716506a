"""Launches on CPU devices: the call that started a run, by the run's number or by the order of the runs."""

from __future__ import annotations

import numpy as np

from trackwalker.perf.formats.model import NONE, Int64, Kernels, Strings
from trackwalker.perf.formats.xplane import CpuRuns, call_names

HASH = -1_234_567_890_123_456_789  # the number of a run in a job of several processes
STRINGS = Strings(["CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice", "fusion", "Execute (jit_step)"])
ONE, OP, CALL = 0, 1, 2


def column(*values: int) -> Int64:
    return np.array(values, np.int64)


def stats(run: Int64, device: Int64, op: Int64) -> dict[str, Int64]:
    return {"correlation_id": np.full(len(run), NONE), "run_id": run, "device_ordinal": device, "hlo_op": op}


def test_a_call_and_the_operations_of_its_run_carry_the_same_number() -> None:
    runs = CpuRuns()
    told = stats(column(HASH, HASH, 7, 7, NONE), column(NONE, 0, NONE, 0, NONE), column(NONE, OP, NONE, OP, NONE))
    given = runs.correlations(told, column(CALL, OP, CALL, OP, CALL), column(1, 2, 3, 4, 5), call_names(STRINGS))
    assert given[0] == given[1]
    assert given[2] == given[3]
    assert len(set(given[:4].tolist())) == 2
    assert (given[:4] > 1 << 32).all()  # no number of CUPTI's
    assert given[4] == NONE
    kernels = Kernels.of(2, start=column(2, 4), end=column(3, 5), correlation=given[[1, 3]])
    assert runs.joined(kernels).tolist() == given[[1, 3]].tolist()


def test_with_one_device_the_order_joins_calls_and_runs() -> None:
    runs = CpuRuns()
    python = stats(column(NONE, NONE), column(NONE, NONE), column(NONE, NONE))
    calls = runs.correlations(python, column(ONE, ONE), column(10, 50), call_names(STRINGS))
    told = stats(column(900, 900, 5), column(0, 0, 0), column(OP, OP, OP))
    given = runs.correlations(told, column(OP, OP, OP), column(12, 14, 53), call_names(STRINGS))
    kernels = Kernels.of(3, start=column(12, 14, 53), end=column(13, 15, 54), correlation=given)
    assert runs.joined(kernels).tolist() == [calls[0], calls[0], calls[1]]


def test_runs_that_began_before_the_trace_are_joined_with_nothing() -> None:
    runs = CpuRuns()
    told = stats(column(900, 5), column(0, 0), column(OP, OP))
    given = runs.correlations(told, column(OP, OP), column(12, 53), call_names(STRINGS))
    kernels = Kernels.of(2, start=column(12, 53), end=column(13, 54), correlation=given)
    assert runs.joined(kernels).tolist() == given.tolist()
