"""One trace file in detail: what its devices' kernels are and where they come from, the program they belong to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trackwalker.perf.analysis.device_view import Cost, DeviceView, view
from trackwalker.perf.analysis.host import compilations
from trackwalker.perf.analysis.result import OpRow
from trackwalker.perf.analysis.steps import main_program
from trackwalker.perf.formats.model import NONE, PS_PER_S, Device, Gap, Kernels, Trace
from trackwalker.perf.formats.reader import open_trace, read_trace
from trackwalker.perf.hlo.program import Program
from trackwalker.perf.hlo.proto import read_proto

_MOST_DEVICES = 8  # looked at in detail: more of the same program say the same
_MOST_GAPS = 100
_MOST_KERNELS = 50


# How full the device's memory really was, as the runtime's allocator reported it.
_DEVICE = re.compile(r"GPU_\d+")  # the host's staging memory has allocators, too


@dataclass(frozen=True)
class Fullest:
    """The device allocator that came closest to its limit."""

    allocator: str
    peak: int  # bytes in use at the worst moment since the process began
    limit: int  # bytes that the allocator may hand out


def fullest(trace: Trace) -> Fullest | None:
    """The device whose memory was fullest; None when the trace has no allocations."""
    table, found = trace.memory, []
    for name in np.unique(table.allocator):
        rows = (table.allocator == name) & (table.peak != NONE) & (table.available != NONE)
        if rows.any() and _DEVICE.match(trace.strings[int(name)]):
            limit = int((table.allocated + table.available)[rows].max())
            found.append(Fullest(trace.strings[int(name)], int(table.peak[rows].max()), limit))
    return max(found, key=lambda one: one.peak / max(one.limit, 1), default=None)


@dataclass
class Detail:
    """What one file tells beyond steps and buckets; kernels are let go."""

    file: str
    devices: list[Device] = field(default_factory=list)  # without their kernels
    kinds: list[OpRow] = field(default_factory=list)
    parts: list[OpRow] = field(default_factory=list)
    ops: list[OpRow] = field(default_factory=list)
    kernels: list[OpRow] = field(default_factory=list)
    gaps: list[OpRow] = field(default_factory=list)  # host-bound gaps by frame
    program: Program | None = None
    compiled: bool = True  # False: there is no program to look for
    versions: dict[str, str] = field(default_factory=dict)
    missing: list[Gap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def window_of(path: Path) -> tuple[float, float] | None:
    """When a trace was taken, in unix seconds, by what the file itself says; None when it does not."""
    trace = open_trace(path).trace
    if trace.origin_ns is None:
        return None
    begin = trace.origin_ns / 1e9
    return begin, trace.stop_ns / 1e9 if trace.stop_ns else begin


def views(path: Path) -> tuple[Trace, list[DeviceView], dict[int, Program]]:
    """A file's devices, fully read."""
    trace = read_trace(path)
    programs = _programs(trace)
    return trace, [view(trace, device, programs) for device in trace.devices[:_MOST_DEVICES]], programs


def read_detail(path: Path) -> Detail:
    """Read one file and keep the sums; an op or a program that cannot be understood costs itself only."""
    trace, seen, programs = views(path)
    out = Detail(path.name, versions=trace.versions, missing=trace.gaps, compiled=trace.compiled)
    out.devices = [replace(device, kernels=Kernels.empty()) for device in trace.devices]
    if full := fullest(trace):
        used, limit = full.peak / 2**30, full.limit / 2**30
        out.notes.append(f"device memory: at most {used:.1f} of {limit:.1f} GiB in use ({full.allocator})")
    if compiled := compilations(trace):
        seconds = sum(end - start for start, end in compiled) / PS_PER_S
        out.notes.append(f"{len(compiled)} programs were compiled while the trace ran ({seconds:.2f} s): new shapes?")
    out.program = next((p for v in seen if (p := main_of(v.device.kernels, programs)) is not None), None)
    stepped = [v for v in seen if v.steps]
    weight = sum(len(v.steps) for v in stepped)
    whole = sum(v.total.total for v in stepped)
    if not weight:
        return out
    out.kinds = _rows([v.by_class() for v in stepped], weight, whole)
    out.parts = _rows([v.by_part() for v in stepped], weight, whole)
    out.ops = _rows([v.by_op(most=100_000) for v in stepped], weight, whole)
    out.kernels = _rows([v.by_kernel(_MOST_KERNELS) for v in stepped], weight, whole)[:_MOST_KERNELS]
    gaps = [Cost(gap.frame, "", 1, gap.span) for v in stepped for gap in v.host_gaps(_MOST_GAPS)]
    out.gaps = _rows([gaps], weight, whole)
    return out


def main_of(kernels: Kernels, programs: dict[int, Program]) -> Program | None:
    """The program that takes most of a device's time, where the trace carries it."""
    rows = np.flatnonzero(main_program(kernels))
    return programs.get(int(kernels.program[rows[0]])) if len(rows) else None


def _programs(trace: Trace) -> dict[int, Program]:
    """The programs that kernels of the trace belong to; the others (there are dozens) are not decoded."""
    wanted = {int(p) for device in trace.devices for p in np.unique(device.kernels.program)}
    found = {}
    for number in wanted & trace.programs.keys():
        try:
            found[number] = read_proto(trace.programs[number], number)
        except Exception as e:  # a newer format: the trace is still worth reading
            name = trace.program_names.get(number, str(number))
            trace.gaps.append(Gap(f"program {name}", f"{type(e).__name__}: {e}", "report this as a defect"))
    return found


def _rows(many: list[list[Cost]], weight: int, whole: int) -> list[OpRow]:
    """The costs of several devices, per step and device, most first."""
    sums: dict[Cost, list[int]] = {}
    for costs in many:
        for cost in costs:
            row = sums.setdefault(replace(cost, count=0, ps=0), [0, 0])
            row[0] += cost.count
            row[1] += cost.ps
    rows = []
    for cost, (count, ps) in sums.items():
        told = {"kind": cost.kind, "part": cost.part, "phase": cost.phase, "source": cost.source, "path": cost.path}
        told = {name: value for name, value in told.items() if value != cost.name or name == "path"}
        seconds = ps / weight / PS_PER_S
        rows.append(OpRow(name=cost.name, **told, count=count / weight, seconds=seconds, share=ps / whole))
    return sorted(rows, key=lambda row: (-row.seconds, row.name, row.phase))
