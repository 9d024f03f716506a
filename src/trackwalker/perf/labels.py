"""Which steps say nothing about the speed of training, and why: each step gets one label or none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.interruptions import interruptions
from trackwalker.diagnose.projection import save_period
from trackwalker.diagnose.sources import StepRecord
from trackwalker.logs.index import LogIndex
from trackwalker.perf.table import Floats, StepTable

Words = NDArray[np.str_]
Windows = list[tuple[float, float]]  # begin and end in unix seconds

# In order of importance: the first that fits is the label.
LABELS = ("restart", "compile", "checkpoint", "profiler", "eval", "warm-up")
_JOURNAL = {"compile": "compile", "checkpoint": "checkpoint", "eval": "eval", "capture": "profiler"}


@dataclass(frozen=True)
class Labelled:
    """One rank's steps, each with its label ("" for a plain step)."""

    table: StepTable
    label: Words

    @property
    def plain(self) -> NDArray[np.bool_]:
        """Steps that say something about the speed, and were timed."""
        seconds = self.table.column("seconds")
        return np.asarray((self.label == "") & np.isfinite(seconds) & (seconds > 0))


def label_steps(table: StepTable, index: LogIndex, traced: Windows, restarts: Iterable[int] = ()) -> Labelled:
    """Label the lead rank's steps; `traced` are the windows of the profiler as the trace files state them."""
    lead = table.lead()
    lead.phases, lead.notes = table.phases, table.notes
    record = StepRecord(lead.step, lead.column("seconds"), lead.column("tgs"), _lines(lead, index), None, None)
    marked = interruptions(index, record, save_period(index))
    found = {name: np.zeros(len(lead), np.bool_) for name in LABELS}
    found["compile"] |= marked.compile
    found["checkpoint"] |= marked.save
    found["profiler"] |= marked.profiler
    found["warm-up"] |= marked.warm_up
    found["restart"] |= np.isin(lead.step, np.array(sorted(restarts), np.int64))
    found["eval"] |= _evaluations(lead, index)
    begin, end = lead.column("end") - lead.column("seconds"), lead.column("end")
    for phase, windows in _windows(table).items():
        found[_JOURNAL[phase]] |= _during(begin, end, windows)
    found["profiler"] |= _during(begin, end, traced)
    label = np.full(len(lead), "", dtype="<U10")
    for name in reversed(LABELS):
        label[found[name]] = name
    return Labelled(lead, label)


def _lines(lead: StepTable, index: LogIndex) -> NDArray[np.int64] | None:
    """Lines of the log for these steps, so that a compilation between two of them can be placed."""
    steps = index.steps
    same = len(steps) == len(lead) and bool((steps.step == lead.step).all())
    return steps.line if same else None


def _evaluations(lead: StepTable, index: LogIndex) -> NDArray[np.bool_]:
    """An evaluation follows every so many steps, and is timed with the step that ends it or the one behind."""
    every = index.facts.number("eval_interval") or 0
    if every <= 0:
        return np.zeros(len(lead), np.bool_)
    done = lead.step + 1
    return np.asarray(((done % every == 0) | (lead.step % every == 0)) & (lead.step > 0))


def _windows(table: StepTable) -> dict[str, Windows]:
    """When the ranks were busy with something else, by their own journal."""
    out: dict[str, Windows] = {name: [] for name in _JOURNAL}
    for record in table.phases:
        phase = str(record.get("phase"))
        if phase in out and record.get("state") == "end" and not record.get("background"):
            try:
                at, seconds = float(record["t"]), float(record["seconds"])
            except (KeyError, TypeError, ValueError):
                continue
            out[phase].append((at - seconds, at))
    return out


def _during(begin: Floats, end: Floats, windows: Windows) -> NDArray[np.bool_]:
    """Steps that overlap a window by more than a sliver of themselves."""
    hit = np.zeros(len(begin), np.bool_)
    if not np.isfinite(begin).any():
        return hit
    for left, right in windows:
        common = np.minimum(end, right) - np.maximum(begin, left)
        hit |= np.nan_to_num(common, nan=-1.0) > 0.01 * np.nan_to_num(end - begin, nan=0.0)
    return hit
