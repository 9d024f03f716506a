"""Which call of the host started each run of a program on CPU devices: launches for traces that have no CUPTI."""

from __future__ import annotations

import re

import numpy as np

from trackwalker.perf.model import NONE, Int64, Kernels, Strings

AROUND = re.compile(r"(while|conditional|call)(\.\d+)?")  # operations that only contain others
RUN = 1 << 40  # added to a run's number, so that it is nobody else's correlation number
_CALL = 1 << 60  # added to the time of a call that does not say its run
_ONE_DEVICE = "::ExecuteHelper"  # how the call is named in a process with one device: it says no number


class CpuRuns:
    """Collects the calls thread by thread; afterwards the operations of each run find theirs."""

    def __init__(self) -> None:
        self._calls: list[Int64] = []
        self._numbered = False

    def correlations(self, stats: dict[str, Int64], name: Int64, start: Int64, calls: list[int]) -> Int64:
        """The correlation numbers of a thread's events, with those of runs filled in; `calls` are names of calls."""
        given = stats["correlation_id"]
        numbered = stats["run_id"] != NONE
        if numbered.any():
            operation = (stats["device_ordinal"] >= 0) & (stats["hlo_op"] >= 0)
            call = (stats["device_ordinal"] < 0) & (given <= 0)
            self._numbered |= bool((call & numbered).any())
            # In a job of several processes the number is a hash of 64 bits.
            given = np.where(numbered & (call | operation), stats["run_id"] & (RUN - 1) | RUN, given)
        unnumbered = np.isin(name, calls) & (given <= 0)
        self._calls.append(start[unnumbered])
        return np.where(unnumbered, start + _CALL, given)

    def joined(self, kernels: Kernels) -> Int64:
        """The correlation numbers of one device's operations; where calls have no number their order tells."""
        calls = np.sort(np.concatenate(self._calls)) if self._calls else np.zeros(0, np.int64)
        runs, index = np.unique(kernels.correlation, return_inverse=True)
        if self._numbered or len(runs) != len(calls) or (runs == NONE).any():
            return kernels.correlation
        begun = np.full(len(runs), np.iinfo(np.int64).max)
        np.minimum.at(begun, index, kernels.start)
        place = np.empty(len(runs), np.int64)
        place[np.argsort(begun, kind="stable")] = np.arange(len(runs))
        return (calls + _CALL)[place][index]


def call_names(names: Strings) -> list[int]:
    """The names that such calls have."""
    return [number for number, name in enumerate(names.names()) if _ONE_DEVICE in name]
