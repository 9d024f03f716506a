"""Every step of every rank as one table, from wherever the run wrote it down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackwalker.diagnose.sources import EVENTS, JOURNAL, LOG, event_files
from trackwalker.job import journal
from trackwalker.job.layout import Job
from trackwalker.logs.index import LogIndex
from trackwalker.logs.reader import read_log
from trackwalker.logs.tfevents import MOST_STEPS, read_events

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_COLUMNS = ("seconds", "tgs", "tflops", "mfu", "data_wait_s", "end")
_MOST_LINES = 500_000  # step lines of all ranks: beyond that only one rank's are read
_ROUNDING = 0.0006  # seconds: what printing three digits takes away
_AT = {name: i for i, name in enumerate(_COLUMNS)}


@dataclass
class StepTable:
    """One row per rank and step, in that order; a step done twice keeps the later, what was not told is NaN."""

    rank: Ints
    step: Ints
    values: Floats  # one column for each of _COLUMNS
    source: str
    sources: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    phases: list[dict[str, Any]] = field(default_factory=list)  # begin and end of what is no step
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.step)

    def column(self, name: str) -> Floats:
        """One column of all rows."""
        return self.values[:, _AT[name]]

    @property
    def ranks(self) -> list[int]:
        """The ranks that told of steps."""
        return [int(r) for r in np.unique(self.rank)]

    def of(self, rank: int) -> StepTable:
        """One rank's rows."""
        rows = self.rank == rank
        return StepTable(self.rank[rows], self.step[rows], self.values[rows], self.source)

    def lead(self) -> StepTable:
        """The rank to judge the run by: the one with most steps, the lowest of equals."""
        ranks, counts = np.unique(self.rank, return_counts=True)
        return self.of(int(ranks[int(np.argmax(counts))])) if len(ranks) else self


Row = tuple[int, int, tuple[float, ...]]


def step_table(job: Job, index: LogIndex) -> StepTable | None:
    """The fullest place wins; TensorBoard's full precision replaces the log's three digits where they are one run."""
    found: dict[str, list[Row]] = {}
    phases: list[dict[str, Any]] = []
    if job.progress is not None:
        found[JOURNAL], phases = _from_journal(job)
    found[LOG] = _from_log(job, index)
    found = {name: rows for name, rows in found.items() if rows}
    events = read_events(event_files(job, index))
    if events is not None:
        nothing = math.nan
        found[EVENTS] = [
            (0, int(s), (sec, tgs, nothing, nothing, nothing, at))
            for s, sec, tgs, at in zip(events.step, events.seconds, events.tgs, events.written, strict=True)
        ]
    if not found:
        return None
    order = [name for name in (JOURNAL, LOG, EVENTS) if name in found]
    best = max(order, key=lambda name: (_timed(found[name]), -order.index(name)))
    table = _table(found[best], best)
    table.sources = {name: len({row[1] for row in rows}) for name, rows in found.items()}
    table.phases = phases
    if best == LOG and len(table.ranks) < len(index.steps.last_by_rank):
        table.notes.append(
            f"only rank {table.ranks[0]} is read: the log has too many step lines to compare ranks by it"
        )
    for name in order:
        if name != best:
            _join(table, _table(found[name], name))
    return table


def _timed(rows: list[Row]) -> int:
    return len({row[1] for row in rows if math.isfinite(row[2][0])})


def _table(rows: list[Row], source: str) -> StepTable:
    kept = {(rank, step): values for rank, step, values in rows}  # the later of two wins
    keys = sorted(kept)
    values = np.array([kept[k] for k in keys], float).reshape(-1, len(_COLUMNS))
    own = [(r, s) for r, s, _ in rows if r == keys[0][0]]  # a restart repeats the same steps on every rank
    return StepTable(
        np.array([k[0] for k in keys], np.int64), np.array([k[1] for k in keys], np.int64), values, source,
        repeated=len(own) - len(set(own)),
    )  # fmt: skip


def _join(table: StepTable, other: StepTable) -> None:
    """Fill what the table lacks from another place, and say where the two disagree about the same steps."""
    mine = table.rank.astype(object) * MOST_STEPS + table.step
    theirs = {int(r) * MOST_STEPS + int(s): i for i, (r, s) in enumerate(zip(other.rank, other.step, strict=True))}
    pairs = [(i, theirs[k]) for i, k in enumerate(mine) if k in theirs]
    if not pairs:
        return
    ours, at = (np.array(c) for c in zip(*pairs, strict=True))
    a, b = table.values[ours, 0], other.values[at, 0]
    known = np.isfinite(a) & np.isfinite(b) & (a > 0)
    apart = float(np.median(np.abs(b[known] - a[known]) / a[known])) if known.any() else 0.0
    if apart > 0.02 and float(np.median(np.abs(b[known] - a[known]))) > 0.002:
        table.notes.append(
            f"{table.source} and {other.source} time the same steps {100 * apart:.0f} % apart: {table.source} is used"
        )
        return
    if table.source == LOG:  # three digits there, all of them here
        more = known & (np.abs(b - a) <= _ROUNDING)
        table.values[ours[more], 0] = b[more]
    for column in range(table.values.shape[1]):
        lacking = ~np.isfinite(table.values[ours, column])
        table.values[ours[lacking], column] = other.values[at[lacking], column]


def _from_journal(job: Job) -> tuple[list[Row], list[dict[str, Any]]]:
    rows: list[Row] = []
    phases = []
    for record in journal.read(job.progress).items if job.progress else []:
        try:
            rank, at = int(record.get("rank", 0)), float(record["t"])
            if record.get("phase") != "train":
                if record.get("state") in ("begin", "end"):
                    phases.append(record)
                continue
            step = int(record["step"])
            if not 0 <= step < MOST_STEPS:
                continue
            names = ("seconds", "tokens_per_s", "tflops", "mfu", "data_wait_s")
            rows.append((rank, step, (*(_number(record.get(n)) for n in names), at)))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return rows, phases


def _from_log(job: Job, index: LogIndex) -> list[Row]:
    """All ranks' lines where the log labels them; else the one rank whose lines could be read."""
    nothing = math.nan
    rows: list[Row] = []
    many = len(index.steps) * max(len(index.steps.last_by_rank), 1) > _MOST_LINES
    if job.log is not None and index.steps.dialect == "maxtext" and not many:
        for rank, lines in read_log(job.log).steps.items():
            for line in lines:
                tgs = nothing if line.tgs is None else line.tgs
                rows.append((rank, line.step, (line.seconds, tgs, nothing, nothing, nothing, nothing)))
    if rows:
        return rows
    steps = index.steps
    return [
        (steps.rank or 0, int(s), (float(sec), float(tgs), nothing, nothing, nothing, nothing))
        for s, sec, tgs in zip(steps.step, steps.seconds, steps.tgs, strict=True)
    ]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
