"""One device of a trace, fully read: its steps, what each kernel is, where it comes from, and where the time went."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from trackwalker.perf.analysis.classes import Classified, classify
from trackwalker.perf.analysis.host import HostGap, Launches, host_gaps, launches
from trackwalker.perf.analysis.parts import PHASES, Origins, origins, part_names
from trackwalker.perf.analysis.step_buckets import Timeline, timeline
from trackwalker.perf.analysis.steps import find_steps
from trackwalker.perf.formats.model import Buckets, Device, Flags, Int64, Step, Trace
from trackwalker.perf.hlo.program import Program


@dataclass(frozen=True)
class Cost:
    """What a kernel, a class of kernels or a part of the model took in all steps together."""

    name: str
    kind: str  # class of the kernels
    count: int
    ps: int  # sum of the kernels' own times: kernels on two streams count twice
    part: str = ""
    phase: str = ""
    path: str = ""
    source: str = ""


@dataclass(frozen=True)
class DeviceView:
    """Everything that one device's kernels tell."""

    trace: Trace
    device: Device
    launched: Launches
    steps: list[Step]
    classes: Classified
    origins: Origins
    line: Timeline
    buckets: list[Buckets]  # of each step

    @property
    def total(self) -> Buckets:
        """All steps together."""
        return sum(self.buckets, Buckets())

    @cached_property
    def in_steps(self) -> Flags:
        """The kernels that start inside a step."""
        start = self.device.kernels.start
        begins = np.array([step.start for step in self.steps], np.int64)
        ends = np.array([step.end for step in self.steps], np.int64)
        place = np.searchsorted(begins, start, side="right") - 1
        return (place >= 0) & (start < ends[place.clip(min=0)]) if len(begins) else np.zeros(len(start), np.bool_)

    def by_class(self) -> list[Cost]:
        """Time by class of kernel, most first."""
        return self._sums(self.classes.number, self._class)

    def by_part(self) -> list[Cost]:
        """Time by part of the model and pass, most first."""
        key = self.origins.part * len(PHASES) + self.origins.phase
        return self._sums(key, self._part)

    def by_kernel(self, most: int = 50) -> list[Cost]:
        """Time by kernel name, most first."""
        return self._sums(self.device.kernels.name.astype(np.int64), self._kernel)[:most]

    def by_op(self, most: int = 50) -> list[Cost]:
        """Time by operation of the program (its op path), most first; kernels without one by their name."""
        path, name = self.origins.path, self.device.kernels.name.astype(np.int64)
        width = len(self.trace.strings) + 1
        key = np.where(path >= 0, path * width, name + 1) * len(self.classes.names) + self.classes.number
        return self._sums(key, self._op)[:most]

    def host_gaps(self, most: int = 200) -> list[HostGap]:
        """The longest gaps that the host caused within the steps, with what it did meanwhile."""
        found = host_gaps(self.trace, self.device.kernels, self.line, self.launched, most)
        return [gap for gap in found if any(s.start <= gap.start < s.end for s in self.steps)]

    def _sums(self, key: Int64, describe: Callable[[int], Cost]) -> list[Cost]:
        rows = np.flatnonzero(self.in_steps)
        _, first, index, count = np.unique(key[rows], return_index=True, return_inverse=True, return_counts=True)
        ps = np.zeros(len(first), np.int64)
        np.add.at(ps, index, (self.device.kernels.end - self.device.kernels.start)[rows])
        costs = [
            replace(describe(int(rows[at])), count=int(n), ps=int(spent))
            for at, n, spent in zip(first, count, ps, strict=True)
        ]
        return sorted(costs, key=lambda cost: (-cost.ps, cost.name))

    def _class(self, row: int) -> Cost:
        return Cost(self._kind(row), self._kind(row), 0, 0)

    def _part(self, row: int) -> Cost:
        part, phase = part_names()[int(self.origins.part[row])], PHASES[int(self.origins.phase[row])]
        return Cost(part, "", 0, 0, part=part, phase=phase)

    def _kernel(self, row: int) -> Cost:
        name = self.trace.strings[int(self.device.kernels.name[row])]
        return Cost(name, self._kind(row), 0, 0)

    def _op(self, row: int) -> Cost:
        strings = self.trace.strings
        path, source = strings[int(self.origins.path[row])], strings[int(self.origins.source[row])]
        part, phase = part_names()[int(self.origins.part[row])], PHASES[int(self.origins.phase[row])]
        name = strings[int(self.device.kernels.op[row])] or strings[int(self.device.kernels.name[row])]
        return Cost(path or name, self._kind(row), 0, 0, part, phase, path, source)

    def _kind(self, row: int) -> str:
        return self.classes.names[int(self.classes.number[row])]


def view(trace: Trace, device: Device, programs: Mapping[int, Program]) -> DeviceView:
    """Reads one device; programs (by id) tell where its kernels come from, as far as they are known."""
    launched = launches(trace, device.kernels)
    steps = find_steps(trace, device, launched.start)
    found = origins(device.kernels, trace.strings, programs)
    kernels = replace(device.kernels, path=found.path.astype(np.int32))
    classes = classify(kernels, trace.strings, found.inside.astype(np.int32))
    line = timeline(kernels, classes.engine, launched.start, steps[0].start if steps else None)
    return DeviceView(trace, device, launched, steps, classes, found, line, line.buckets(steps))
