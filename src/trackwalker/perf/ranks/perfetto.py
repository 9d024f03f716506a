"""All ranks on one clock, for ui.perfetto.dev: steps and collectives of every rank, kernels of those asked for.

Written as Perfetto's own protobuf with names said once, so that it stays small and opens where JSON would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.layout import Job
from trackwalker.perf.analysis.report import Options, find_traces
from trackwalker.perf.analysis.result import Missing
from trackwalker.perf.analysis.traces import Traces, last_window
from trackwalker.perf.formats.model import NONE, PS_PER_NS, Device, Int64, Trace
from trackwalker.perf.formats.reader import read_trace
from trackwalker.perf.ranks.compare import Across, compare
from trackwalker.perf.ranks.gather import RankTable, gather

_PACKET, _SEQUENCE = 1, 1
_CLEARED, _NEEDS_NAMES = 1, 2  # flags of a packet: names begin anew, names are referred to
_BEGIN, _END = 1, 2
_ROWS = 100_000  # slices encoded at a time
_TRACKS_PER_RANK = 1000


# Writes the protobuf wire format, a million rows at a time: the other direction of `wire`.
_VARINT, _BYTES = 0, 2


# The ranks of a job in one file for Perfetto, on one clock.
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


def varint(value: int) -> bytes:
    """One number, seven bits to a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A number field."""
    return varint(field << 3 | _VARINT) + varint(value)


def block(field: int, body: bytes | str) -> bytes:
    """A string, bytes or message field."""
    raw = body.encode() if isinstance(body, str) else body
    return varint(field << 3 | _BYTES) + varint(len(raw)) + raw


Column = npt.NDArray[Any]


class Ragged(NamedTuple):
    """Rows of bytes of different lengths, one after the other."""

    data: Column
    lengths: Column


def varints(values: Column) -> Ragged:
    """One number in each row."""
    rest = values.astype(np.uint64)
    digits = np.empty((len(rest), 10), np.uint8)
    lengths = np.ones(len(rest), np.int64)
    for i in range(10):
        digits[:, i] = rest & np.uint64(0x7F)
        rest = rest >> np.uint64(7)
        more = rest > 0
        digits[more, i] |= 0x80
        lengths += more
    return Ragged(digits[np.arange(10) < lengths[:, None]], lengths)


def same(text: bytes, rows: int) -> Ragged:
    """The same bytes in each row."""
    return Ragged(np.tile(np.frombuffer(text, np.uint8), rows), np.full(rows, len(text), np.int64))


def joined(*columns: Ragged) -> Ragged:
    """The columns side by side, row by row."""
    lengths = np.sum([c.lengths for c in columns], axis=0)
    at = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    for column in columns:
        out[_within(column.lengths) + np.repeat(at, column.lengths)] = column.data
        at = at + column.lengths
    return Ragged(out, lengths)


def blocks(field: int, rows: Ragged) -> bytes:
    """Every row as one message of a repeated field."""
    head = same(varint(field << 3 | _BYTES), len(rows.lengths))
    return joined(head, varints(rows.lengths), rows).data.tobytes()


def _within(lengths: Column) -> Column:
    """0, 1, 2 ... within each row."""
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    within: Column = np.arange(len(first)) - first
    return within


@dataclass
class Slices:
    """Coloured bars of one track; they do not overlap."""

    track: int
    start: Int64  # nanoseconds
    end: Int64
    name: Int64  # interned
    flow: Int64  # bars of one number are joined by arrows; 0 none


class _Names:
    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._fresh: list[bytes] = []

    def __getitem__(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = len(self._ids) + 1
            self._fresh.append(block(2, number(1, self._ids[name]) + block(2, name)))
        return self._ids[name]

    def packet(self) -> bytes:
        """The names that no packet has said yet."""
        fresh, self._fresh = self._fresh, []
        return _packet(block(12, b"".join(fresh)) + number(13, _NEEDS_NAMES)) if fresh else b""


def write_perfetto(
    out: Path, ranks: Sequence[RankTable], across: Across, detailed: dict[int, tuple[Trace, Device]]
) -> None:
    """The merged trace; `detailed` gives the kernels of some ranks by number."""
    names = _Names()
    with out.open("wb") as file:
        file.write(_packet(number(13, _CLEARED)))
        for i, rank in enumerate(ranks):
            clock = _Clock(across, i)
            root = 1 + i * _TRACKS_PER_RANK
            file.write(
                _packet(block(60, number(1, root) + block(3, number(1, i + 1) + block(6, f"rank {i}: {rank.label}"))))
            )
            _write(file, names, root, i, "steps", [_steps(rank, clock, names)])
            _write(file, names, root + 1, i, "collectives", _lanes(_collectives(across, i, names)))
            if i in detailed:
                trace, device = detailed[i]
                for j, (title, slices) in enumerate(_streams(trace, device, clock, names)):
                    _write(file, names, root + 100 + j, i, title, [slices])


class _Clock:
    """A rank's times on the common clock, in nanoseconds from the first event of the job."""

    def __init__(self, across: Across, rank: int) -> None:
        self._across, self._rank = across, rank
        starts = across.start[across.start != NONE]
        self._origin = int(starts.min()) if len(starts) else 0

    def __call__(self, times: Int64) -> Int64:
        a = self._across.alignment
        rough = times + self._across.meetings.base[self._rank]
        moved = rough + a.offset[self._rank] + np.rint(a.drift[self._rank] * (rough - a.pivot)).astype(np.int64)
        return self.ns(moved)

    def ns(self, common: Int64) -> Int64:
        """A moment of the common clock; with a second to spare for what came before the first meeting."""
        return np.maximum((common - self._origin) // PS_PER_NS + 1_000_000_000, 0)


def _steps(rank: RankTable, clock: _Clock, names: _Names) -> Slices:
    start = clock(np.array([s.start for s in rank.steps], np.int64))
    end = clock(np.array([s.end for s in rank.steps], np.int64))
    titles = [names[f"step {s.number if s.number is not None else i}"] for i, s in enumerate(rank.steps)]
    return Slices(0, start, end, np.array(titles, np.int64), np.zeros(len(start), np.int64))


def _collectives(across: Across, rank: int, names: _Names) -> Slices:
    here = np.flatnonzero(across.start[rank] != NONE)
    clock = _Clock(across, rank)
    table = np.array([names[op] for op in across.meetings.ops] or [0], np.int64)
    start, end = clock.ns(across.start[rank, here]), clock.ns(across.end[rank, here])
    return Slices(0, start, end, table[across.meetings.op[here]], here + 1)


def _streams(trace: Trace, device: Device, clock: _Clock, names: _Names) -> list[tuple[str, Slices]]:
    kernels = device.kernels
    found = []
    for stream in np.unique(kernels.stream):
        rows = kernels.take(kernels.stream == stream)
        used, index = np.unique(rows.name, return_inverse=True)
        table = np.array([names[trace.strings[int(n)] or "?"] for n in used], np.int64)
        flow = np.zeros(len(rows), np.int64)
        title = device.streams.get(int(stream), f"stream {stream}")
        found.append((title, Slices(0, clock(rows.start), clock(rows.end), table[index], flow)))
    return found


def _lanes(slices: Slices) -> list[Slices]:
    """Asynchronous collectives overlap, bars of one track must not: as many lanes as run at once."""
    order = np.argsort(slices.start, kind="stable")
    lane = np.zeros(len(order), np.int64)
    free: list[int] = []
    for row in order:
        start = int(slices.start[row])
        place = next((i for i, end in enumerate(free) if end <= start), len(free))
        if place == len(free):
            free.append(0)
        free[place] = max(int(slices.end[row]), start + 1)
        lane[row] = place
    picks = [order[lane[order] == i] for i in range(len(free))]
    return [Slices(0, slices.start[p], slices.end[p], slices.name[p], slices.flow[p]) for p in picks]


def _write(file: BinaryIO, names: _Names, track: int, process: int, title: str, lanes: list[Slices]) -> None:
    """The lanes of one thread-like track of a rank."""
    for i, slices in enumerate(lanes):
        uuid = track * 100 + i + 1_000_000_000
        thread = number(1, process + 1) + number(2, uuid % 2**31) + block(5, title)
        parent = 1 + process * _TRACKS_PER_RANK
        file.write(_packet(block(60, number(1, uuid) + block(2, title) + block(4, thread) + number(5, parent))))
        file.write(names.packet())
        slices.track = uuid
        for at in range(0, len(slices.start), _ROWS):
            file.write(_encoded(slices, slice(at, at + _ROWS)))


def _encoded(slices: Slices, rows: slice) -> bytes:
    start, name, flow = slices.start[rows], slices.name[rows], slices.flow[rows]
    end = np.maximum(slices.end[rows], start + 1)
    count = len(start)
    time = np.concatenate((start, end))
    begins = np.arange(2 * count) < count
    order = np.lexsort((begins, time))  # at one moment the old bar ends before the new one begins
    time, begins = time[order], begins[order]
    which = order % count
    kind = _chosen_kind(begins, name[which], flow[which], slices.track)
    head = joined(
        same(b"\x40", len(time)), varints(time), same(number(10, _SEQUENCE) + number(13, _NEEDS_NAMES), len(time))
    )
    return blocks(_PACKET, joined(head, same(b"\x5a", len(time)), varints(kind.lengths), kind))


def _chosen_kind(begins: np.ndarray, name: Int64, flow: Int64, track: int) -> Ragged:
    """The event of each packet: a begin says its name and its arrows, an end only where it is."""
    count = len(begins)
    tail = number(11, track)
    title = _only(joined(same(b"\x50", count), varints(name)), begins)
    arrow = Ragged(np.ascontiguousarray(flow.astype("<u8")).view(np.uint8), np.full(count, 8, np.int64))
    arrows = _only(joined(same(b"\xf9\x02", count), arrow), begins & (flow > 0))
    kinds = varints(np.where(begins, _BEGIN, _END))
    return joined(same(b"\x48", count), kinds, title, same(tail, count), arrows)


def _only(rows: Ragged, wanted: np.ndarray) -> Ragged:
    """Rows that are not wanted become empty."""
    keep = np.repeat(wanted, rows.lengths)
    return Ragged(rows.data[keep], np.where(wanted, rows.lengths, 0))


def _packet(body: bytes) -> bytes:
    return block(_PACKET, body + number(10, _SEQUENCE))
