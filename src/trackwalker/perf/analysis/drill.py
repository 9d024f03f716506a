"""One operation in depth: every execution in the traced steps, on every device, with where it comes from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.layout import Job
from trackwalker.perf.analysis.detail import main_of, views
from trackwalker.perf.analysis.device_view import DeviceView
from trackwalker.perf.analysis.drill_result import DrillReport, Execution
from trackwalker.perf.analysis.parts import PHASES, part_names
from trackwalker.perf.analysis.report import Options, find_traces
from trackwalker.perf.analysis.traces import Traces, last_window
from trackwalker.perf.formats.model import PS_PER_S, Int64
from trackwalker.perf.hlo.program import Program

_MOST_ROWS = 40
_MOST_FILES = 8


def drill(job: Job, op: str, options: Options) -> DrillReport:
    """Everything about the operations whose name, kernel, path or source contains `op`, the dearest first."""
    if not op.strip():
        raise UsageError("--op: give a part of an operation's name, kernel, path or source line")
    out = Traces()
    found = find_traces(job, options)
    files = last_window(found.traces, None, out)
    if not files:
        why = "; ".join(m.why for m in out.missing)
        raise EvidenceError(why or f"{job.label} has no trace; `trackwalker perf capture {job.id}` asks a running job")
    rows: list[Execution] = []
    names: list[str] = []
    for path in files[:_MOST_FILES]:
        got = out.attempt(f"trace {path.name}", lambda p=path: _rows(p, op), "copy the trace again")  # type: ignore[misc]
        rows += got[0] if got else []
        names += got[1] if got else []
    if not rows:
        near = ", ".join(dict.fromkeys(names)) or "none"
        raise UsageError(f"no operation in the traced steps contains '{op}'; the dearest are: {near}")
    rows.sort(key=lambda row: (-row.seconds, row.name, row.device))
    return DrillReport(
        job=job.id, op=op, files=[str(f) for f in files], rows=rows[:_MOST_ROWS], more=max(0, len(rows) - _MOST_ROWS),
        missing=out.missing,
    )  # fmt: skip


def _rows(path: Path, op: str) -> tuple[list[Execution], list[str]]:
    trace, seen, programs = views(path)
    rows, names = [], []
    for one in seen:
        if one.steps:
            label = f"{trace.hostname or path.name} {one.device.kind} {one.device.id}"
            rows += _on_device(one, op.lower(), label, main_of(one.device.kernels, programs))
            names += [cost.name for cost in one.by_op(5)]
    return rows, names


def _on_device(one: DeviceView, op: str, label: str, program: Program | None) -> list[Execution]:
    strings, kernels = one.trace.strings, one.device.kernels
    fits = np.zeros(len(strings) + 1, np.bool_)
    fits[: len(strings)] = [op in name.lower() for name in strings.names()]
    columns = (kernels.op, kernels.name, one.origins.path, one.origins.source)
    chosen = one.in_steps & np.logical_or.reduce([fits[column] for column in columns])
    rows = np.flatnonzero(chosen)
    width = len(strings) + 1
    key = kernels.name[rows].astype(np.int64) * width + one.origins.path[rows] + 1
    return [_execution(one, rows[key == each], label, program) for each in np.unique(key)]


def _execution(one: DeviceView, rows: Int64, label: str, program: Program | None) -> Execution:
    strings, kernels, first = one.trace.strings, one.device.kernels, int(rows[0])
    name, op, whole = strings[int(kernels.name[first])], strings[int(kernels.op[first])], one.total.total
    spans = (kernels.end - kernels.start)[rows]
    beside = one.line.comm.within(kernels.start[rows], kernels.end[rows])
    made = (program.instructions.get(op) or program.instructions.get(name)) if program else None
    short, middle, p95, longest = (float(x) / PS_PER_S for x in np.quantile(spans, [0, 0.5, 0.95, 1]))
    total = int(spans.sum())
    return Execution(
        name=name,
        op=op,
        device=label,
        kind=one.classes.names[int(one.classes.number[first])],
        part=part_names()[int(one.origins.part[first])],
        phase=PHASES[int(one.origins.phase[first])],
        path=strings[int(one.origins.path[first])],
        source=strings[int(one.origins.source[first])],
        shape=str(made.shape) if made else "",
        opcode=made.opcode if made else "",
        calls=len(rows) / len(one.steps),
        seconds=total / len(one.steps) / PS_PER_S,
        share=total / whole if whole else 0.0,
        shortest_s=short,
        median_s=middle,
        p95_s=p95,
        longest_s=longest,
        under_comm=float(beside.sum()) / total if total else 0.0,
        streams=sorted({one.device.streams.get(int(s), str(int(s))) for s in np.unique(kernels.stream[rows])}),
    )
