"""The ranks of a job in one file for Perfetto, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.layout import Job
from trackwalker.perf.analysis import Options, find_traces
from trackwalker.perf.gather import gather
from trackwalker.perf.model import Device, Trace
from trackwalker.perf.perfetto import write_perfetto
from trackwalker.perf.rank_table import RankTable
from trackwalker.perf.ranks import compare
from trackwalker.perf.reader import read_trace
from trackwalker.perf.result import Missing
from trackwalker.perf.traces import Traces, last_window


@dataclass(frozen=True)
class Merged:
    """What was written."""

    path: Path
    ranks: int
    detailed: list[int]  # ranks whose kernels are in it
    missing: list[Missing] = field(default_factory=list)


def merge(job: Job, options: Options, out: Path, kernels_of: Sequence[int] = ()) -> Merged:
    """Steps and collectives of every rank; kernels of some: those asked for, else the first rank and the stragglers."""
    seen = Traces()
    files = last_window(find_traces(job, options).traces, None, seen)
    tables, gaps = gather(files, ray=options.ray)
    seen.note(gaps)
    if not tables:
        why = "; ".join(m.why for m in seen.missing)
        raise EvidenceError(why or f"{job.label} has no trace; `trackwalker perf capture {job.id}` asks a running job")
    across = compare(tables)
    wanted = sorted({*kernels_of} or {0, *(s.rank for s in across.stragglers)})
    if wanted[-1] >= len(tables) or wanted[0] < 0:
        raise UsageError(f"--rank {wanted[-1]}: the traces hold ranks 0 to {len(tables) - 1}")
    try:
        write_perfetto(out, tables, across, {rank: _device(tables[rank]) for rank in wanted})
    except OSError as e:
        raise UsageError(f"cannot write {out}: {e.strerror}; choose another place for --out") from e
    return Merged(out, len(tables), wanted, seen.missing)


def _device(table: RankTable) -> tuple[Trace, Device]:
    trace = read_trace(Path(table.path))
    return trace, next(d for d in trace.devices if d.id == table.device and d.kind == table.kind)
