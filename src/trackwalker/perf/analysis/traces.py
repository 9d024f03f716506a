"""The traces of a run in figures: all ranks reduced to small tables, one file looked at in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from trackwalker.perf.analysis.detail import Detail, read_detail, window_of
from trackwalker.perf.analysis.result import (
    Attempts,
    Bucket,
    CollectiveRow,
    DeviceRow,
    ProgramPart,
    RankSteps,
    StragglerRow,
    TracePart,
)
from trackwalker.perf.formats.find import Found
from trackwalker.perf.formats.model import PS_PER_S, Device, Gap
from trackwalker.perf.hlo.program import Program
from trackwalker.perf.hlo.programs import program_part, read_program
from trackwalker.perf.ranks.compare import Across, compare
from trackwalker.perf.ranks.gather import RankTable, gather

NAMES = ("compute", "exposed_comm", "copy", "host_gap", "idle")
_OTHER = 0.05  # of a rank's kernel time in kernels of its own: then it runs something else
_MOST_OTHERS = 8  # such ranks that are named
_TOGETHER_S = 60.0  # windows that begin within this belong to one capture


# Every traced step of every device side by side, and what brings their clocks together.
_MOST_STEPS = 60
_MOST_DEVICES = 1024


def add_rank_steps(part: TracePart, across: Across, tables: Sequence[RankTable]) -> None:
    """Fill in each device's clock and the table of steps; `tables` are those that were compared."""
    stepped = [i for i, table in enumerate(tables) if table.steps]
    for row, i in zip(part.devices, stepped, strict=True):
        row.clock_s = _shift(across, i, tables[i]) / PS_PER_S
    if len(stepped) < 2:
        return
    kept = stepped[:_MOST_DEVICES]
    spans = {
        i: {n if s.number is None else s.number: s.span / PS_PER_S for n, s in enumerate(tables[i].steps)} for i in kept
    }
    steps = sorted({number for row in spans.values() for number in row})[-_MOST_STEPS:]
    column = {int(number): n for n, number in enumerate(across.steps)}
    late = [[across.late[i, column[s]] / PS_PER_S if s in column else None for s in steps] for i in kept]
    part.rank_steps = RankSteps(
        devices=[tables[i].label for i in kept],
        steps=steps,
        step_s=[[spans[i].get(step) for step in steps] for i in kept],
        late_s=late,
    )


def _shift(across: Across, rank: int, table: RankTable) -> float:
    """What is to be added to a device's times, in the middle of its steps: a drift moves that by next to nothing."""
    a, base = across.alignment, int(across.meetings.base[rank])
    middle = float(np.mean([(s.start + s.end) / 2 for s in table.steps])) + base
    return float(base + a.offset[rank] + a.drift[rank] * (middle - a.pivot))


@dataclass
class Traces(Attempts):
    """What the traces and programs of a run say."""

    part: TracePart | None = None
    program: ProgramPart | None = None
    windows: list[tuple[float, float]] = field(default_factory=list)  # unix seconds in which the profiler ran
    devices: list[Device] = field(default_factory=list)  # of the file looked at in detail, without kernels
    ranks: int = 0  # devices that were traced, all files together
    executed: dict[str, float] | None = None  # FLOPs of a step by type
    versions: dict[str, str] = field(default_factory=dict)

    def note(self, gaps: list[Gap]) -> None:
        """What a reader could not say; each once, however many ranks say it."""
        known = {(m.what, m.why) for m in self.missing}
        for gap in gaps:
            if (gap.what, gap.why) not in known:
                known.add((gap.what, gap.why))
                self.lacks(gap.what, gap.why, gap.remedy or "nothing: it is how the trace was recorded")


def read_traces(found: Found, span: tuple[float, float] | None, most: int, ray: str | None = None) -> Traces:
    """All files of the last capture; `span` is the run's time where a folder may hold other jobs' files."""
    out = Traces()
    files = last_window(found.traces, span, out)
    tables: list[RankTable] = []
    if files:
        answer = out.attempt("traces", lambda: gather(files, ray=ray), "see --trace; a file may be damaged")
        tables = answer[0] if answer else []
        out.note(answer[1] if answer else [])
        for table in tables:
            out.note(table.gaps)
    first = next((f for f in files if any(Path(t.path).name == f.name for t in tables)), files[0] if files else None)
    detail: Detail | None = None
    if first is not None:
        detail = out.attempt(f"operations of {first.name}", lambda: read_detail(first), "copy the trace again")
    out.ranks = len(tables)
    compiled = detail is None or detail.compiled
    _add_program(out, detail.program if detail else None, found.programs, bool(files) and compiled)
    if detail is not None:
        out.note(detail.missing)
        out.devices, out.versions = detail.devices, detail.versions
    stepped = [t for t in tables if t.steps]
    if stepped:
        out.part = _part(stepped, files, detail, most)
        out.note(_other_work(stepped, first) if detail is not None and first is not None else [])
        across = out.attempt("comparison of ranks", lambda: compare(tables), "report this as a defect")
        if across is not None:
            _add_ranks(out, out.part, across, stepped)
            add_rank_steps(out.part, across, tables)
    elif files:
        why = "no whole step was found in the traces"
        out.lacks("where the step goes", why, "trace at least two steps that compute")
    return out


def _add_program(out: Traces, program: Program | None, dumps: list[Path], traced: bool) -> None:
    if program is None and dumps:
        path = dumps[-1]
        program = out.attempt(f"program {path.name}", lambda: read_program(path), "dump it again (xla_dump_to)")
    if program is not None:
        made = out.attempt("compiled program", partial(program_part, program), "report this as a defect")
        if made is not None:
            out.program, out.executed = made
    elif traced:
        why, do = "no trace carries the compiled program", "set ENABLE_XLA_DUMP=1, or trace with a newer JAX"
        out.lacks("compiled program", why, do)


def last_window(paths: list[Path], span: tuple[float, float] | None, out: Traces) -> list[Path]:
    """The files that were traced together, of the last time that was done; told by their own clocks."""
    dated: list[tuple[float, float, Path]] = []
    undated: list[Path] = []
    foreign = 0
    for path in paths:
        before = len(out.missing)
        window = out.attempt(f"trace {path.name}", partial(window_of, path), "copy the trace again")
        if window is None:
            undated += [path] if len(out.missing) == before else []
        elif span is not None and not (window[0] <= span[1] and window[1] >= span[0]):
            foreign += 1
        else:
            dated.append((*window, path))
    if foreign:
        why = f"{foreign} traces in a shared folder were taken at other times: other jobs' are left out"
        out.lacks("other traces", why, "--trace FILE reads one all the same")
    out.windows = [(begin, end) for begin, end, _ in dated]
    if undated and (span is not None or not dated):
        why = f"{len(undated)} traces do not say when they were taken"
        do = "copy them whole: a trace says so at its end"
        out.lacks("the time of some traces", why, do)
    if not dated:
        return undated if span is None else []
    dated.sort(key=lambda row: (row[0], row[2].name))
    groups: list[list[tuple[float, float, Path]]] = []
    for row in dated:
        if groups and row[0] <= max(r[1] for r in groups[-1]) and row[0] - groups[-1][0][0] <= _TOGETHER_S:
            groups[-1].append(row)
        else:
            groups.append([row])
    if len(groups) > 1:
        why = f"{len(groups)} captures at different times; the last is shown"
        out.lacks("earlier traces", why, "--trace FOLDER shows one of them")
    return [*(row[2] for row in groups[-1]), *(undated if span is None else [])]


def _part(tables: list[RankTable], files: list[Path], detail: Detail | None, most: int) -> TracePart:
    weight = sum(len(t.steps) for t in tables)
    totals = {name: sum(getattr(b, name) for t in tables for b in t.buckets) for name in NAMES}
    whole = sum(totals.values())
    count = min(len(t.steps) for t in tables)
    samples = {
        name: [float(np.mean([getattr(t.buckets[i], name) for t in tables])) / PS_PER_S for i in range(count)]
        for name in NAMES
    }
    part = TracePart(
        files=[str(p) for p in files],
        windows=1,
        steps=count,
        step_s=whole / weight / PS_PER_S,
        step_samples=[sum(samples[name][i] for name in NAMES) for i in range(count)],
        buckets=[_bucket(name, totals[name] / weight, whole / weight) for name in NAMES],
        bucket_samples=samples,
        overlapped_comm_s=sum(b.overlapped_comm for t in tables for b in t.buckets) / weight / PS_PER_S,
        devices=[_device(t) for t in tables],
    )
    if detail is not None:
        part.kinds, part.parts, part.ops, part.gaps = detail.kinds, detail.parts, detail.ops[:most], detail.gaps[:20]
        part.kernels = detail.kernels
        part.notes += detail.notes
        if len(files) > 1:
            part.notes.append(f"operations are those of {detail.file}; steps and collectives of all files")
    return part


def _other_work(tables: list[RankTable], shown: Path) -> list[Gap]:
    """Operations are read from one file; ranks that run something else must not hide behind it."""
    known = {row.name for t in tables if Path(t.path).resolve() == shown.resolve() for row in t.kernels}
    gaps = []
    for table in tables:
        spent = sum(row.ps for row in table.kernels)
        other = sum(row.ps for row in table.kernels if row.name not in known)
        if known and other > _OTHER * spent:
            why = f"{other / spent:.0%} of its kernels' time is in kernels that {shown.name} does not run"
            do = f"the operations shown are those of {shown.name}: --trace {table.path} shows this one's"
            gaps.append(Gap(f"operations of {table.label}", why, do))
    return gaps[:_MOST_OTHERS]


def _bucket(name: str, ps: float, whole: float) -> Bucket:
    return Bucket(name=name, seconds=ps / PS_PER_S, share=ps / whole if whole else 0.0)


def _device(table: RankTable) -> DeviceRow:
    steps = len(table.steps)
    totals = {name: sum(getattr(b, name) for b in table.buckets) / steps for name in NAMES}
    whole = sum(totals.values())
    buckets = [_bucket(name, ps, whole) for name, ps in totals.items()]
    return DeviceRow(
        device=table.label, file=Path(table.path).name, steps=steps, step_s=whole / PS_PER_S, buckets=buckets
    )


def _add_ranks(out: Traces, part: TracePart, across: Across, tables: list[RankTable]) -> None:
    out.note(across.gaps)
    part.stragglers = [
        StragglerRow(device=s.label, last=s.last, of=s.of, cost_s=s.step_ps / PS_PER_S, share=s.share, says=s.says)
        for s in across.stragglers
    ]
    part.collectives = [
        CollectiveRow(
            name=c.op, kind=c.kind, count=c.count, bytes=c.bytes, group_size=c.members,
            seconds=c.total_ps / PS_PER_S, exposed_s=c.exposed_ps / PS_PER_S, wait_s=c.wait_ps / PS_PER_S,
            algbw_gb_s=c.algbw_gb_s, busbw_gb_s=c.busbw_gb_s, source=c.source, path=c.path,
        )
        for c in across.collectives
    ] or _own_collectives(tables[0])  # fmt: skip
    if across.alignment.residual_ps is not None:
        part.alignment_us = across.alignment.residual_ps / 1e6


def _own_collectives(table: RankTable) -> list[CollectiveRow]:
    """One device alone: how long its collectives took, waiting included."""
    steps = len(np.unique(table.calls.step[table.calls.step >= 0]))
    rows = []
    for number, op in enumerate(table.ops):
        mine = table.calls.take((table.calls.op == number) & (table.calls.step >= 0))
        planned = table.planned.get(op)
        if len(mine):
            rows.append(
                CollectiveRow(
                    name=op, kind=planned.kind if planned else "", count=len(mine) / steps,
                    bytes=planned.bytes if planned else None, group_size=planned.size if planned else None,
                    seconds=float((mine.end - mine.start).sum()) / PS_PER_S / steps,
                    exposed_s=float(mine.exposed.sum()) / PS_PER_S / steps,
                    source=planned.source if planned else "", path=planned.path if planned else "",
                )
            )  # fmt: skip
    return sorted(rows, key=lambda row: -(row.exposed_s or 0.0))
