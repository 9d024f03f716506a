"""Which steps were slow for a known reason: saves, compilation, the profiler, the first steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.sources import Floats, StepRecord
from trackwalker.logs.index import LogIndex

Bools = NDArray[np.bool_]

WARM_UP = 5
_AFTER_SAVE = 3  # a save lengthens its own step and, written in the background, the next two
_PROFILER_DUMP = 2  # writing the trace slows the step that ends it and the next


@dataclass(frozen=True)
class Interruptions:
    """For every step of a record, the reason it may be slow; the reasons do not overlap."""

    save: Bools
    compile: Bools
    profiler: Bools
    warm_up: Bools

    @property
    def any(self) -> Bools:
        """Steps that say nothing about the speed of training."""
        return self.save | self.compile | self.profiler | self.warm_up


def interruptions(index: LogIndex, record: StepRecord, period: int | None) -> Interruptions:
    """Mark the steps of a record."""
    steps, facts = record.step, index.facts
    n = len(steps)
    save, profiler, warm_up, recompiled = (np.zeros(n, np.bool_) for _ in range(4))
    if not n:
        return Interruptions(save, recompiled, profiler, warm_up)
    starts = np.flatnonzero(np.diff(steps, prepend=steps[0] + 1) <= 0)  # first steps of every attempt
    for start in starts:
        warm_up[start : start + WARM_UP] = True
    saved = np.array(sorted(facts.saves), np.int64)
    for shift in range(_AFTER_SAVE):
        save |= np.isin(steps - shift, saved)
        if period:
            save |= ((steps - shift) % period == 0) & (steps - shift > 0)
    # MaxText prints an empty setting as it is, or since 2026 as ProfilerType.NONE.
    if (facts.setting("profiler") or "").strip("'\"").lower().rpartition(".")[2] not in ("", "none"):
        skip = facts.number("skip_first_n_steps_for_profiler") or 0
        width = (facts.number("profiler_steps") or 1) + _PROFILER_DUMP
        for start in starts:
            first = steps[start] + skip
            profiler |= (steps >= first) & (steps < first + width)
    if record.line is not None and facts.compiles:
        # A compilation told of between two steps lengthened the second.
        at = np.searchsorted(record.line, np.array(facts.compiles))
        recompiled[at[(at > 0) & (at < n)]] = True
    first = np.zeros(n, np.bool_)
    first[starts] = True  # the first step waits for its own compilation; a save at step 0 lengthens step 1
    save &= ~first
    compiles = first | (recompiled & ~save)
    profiler &= ~save & ~compiles
    return Interruptions(save, compiles, profiler, warm_up & ~save & ~compiles & ~profiler)


def steady_level(record: StepRecord, slow: Interruptions) -> Floats | None:
    """Seconds of the steps that were not interrupted; all of them where nothing else is left."""
    known = np.isfinite(record.seconds) & (record.seconds > 0)
    chosen = known & ~slow.any
    if not chosen.any():
        chosen = known
    return record.seconds[chosen] if chosen.any() else None
