"""Where a run's steps are written down, and which of the places to believe (spec 1.4): one table of all ranks.

In order of authority: our own journal, the workers' own files, the log, TensorBoard's event file. The log is only a
lower bound: its forwarding can stop while the run goes on. A step that any of them calls completed was completed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trackwalker.job.dialects import MOST_STEPS
from trackwalker.job.layout import Job
from trackwalker.logs.formats.tfevents import EventSteps, read_events
from trackwalker.logs.formats.wandb import read_wandb
from trackwalker.logs.formats.workers import add_workers, last_step, worker_files
from trackwalker.logs.scanning.index import LogIndex
from trackwalker.logs.scanning.steps import Steps
from trackwalker.record.event_files import event_files, wandb_files
from trackwalker.record.journal import NAME as JOURNAL
from trackwalker.record.journal import Pause, Told, read_progress
from trackwalker.stats.medians import known_median, median

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

WORKERS, EVENTS, LOG = "worker logs", "event file", "log"
EVENT_LAG_S = 240.0  # the writer flushes every two minutes and a step is written when the next one ends
_SAME = 0.02  # log and event file time a step within a few milliseconds
_SAME_S = 0.002
_APART = 3  # ranks and writers differ by a step or two without disagreeing
_ROUNDING = 0.0006  # seconds: what printing three digits takes away
_COLUMNS = ("seconds", "tgs", "tflops", "mfu", "data_wait_s", "end", "written", "line")
_TIMED = ("init", "compile", "restore", "checkpoint")  # phases that the ranks time themselves


@dataclass(frozen=True)
class StepTable:
    """One row for each time a rank completed a step, by rank and in the order written; what was not told is NaN."""

    rank: Ints
    step: Ints
    columns: dict[str, Floats]  # of _COLUMNS those that somebody told: a long run's table is large
    source: str | None = None  # where the rows come from; columns that it lacks may come from another place
    used: str | None = None  # the place that knows of the last step
    last: int | None = None  # the last step that any rank completed, by any place
    says: dict[str, int] = field(default_factory=dict)  # place -> last step
    counts: dict[str, int] = field(default_factory=dict)  # place -> how many steps it tells of
    disagreement: str = ""
    notes: tuple[str, ...] = ()
    clock: str | None = None  # whose times the column "end" holds
    last_end: float | None = None  # wall time at which the last step ended
    first_end: float | None = None
    begin: float | None = None  # wall time of the first sign of the ranks
    phases: dict[str, float] = field(default_factory=dict)  # seconds that the ranks timed themselves, by phase
    pauses: tuple[Pause, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    def column(self, name: str) -> Floats:
        """One column of all rows."""
        return self.columns[name] if name in self.columns else np.full(len(self), np.nan)

    @property
    def seconds(self) -> Floats:
        """How long each step took."""
        return self.column("seconds")

    @property
    def tgs(self) -> Floats:
        """Tokens per second and device."""
        return self.column("tgs")

    @property
    def line(self) -> Floats:
        """The line of the log that tells of each step, where the log tells of it."""
        return self.column("line")

    @property
    def ranks(self) -> list[int]:
        """The ranks that told of steps."""
        return [int(r) for r in np.unique(self.rank)]

    @property
    def repeated(self) -> int:
        """How many steps the lead rank did again: a restart repeats the same steps on every rank."""
        own = self.lead().step
        return len(own) - len(np.unique(own))

    def take(self, rows: Bools | Ints) -> StepTable:
        """Some of the rows; all of them in their order are the table itself."""
        if len(rows) == len(self) and (
            rows.all() if rows.dtype == np.bool_ else (np.diff(rows, prepend=-1) == 1).all()
        ):
            return self
        picked = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, rank=self.rank[rows], step=self.step[rows], columns=picked)

    def lead(self) -> StepTable:
        """The rank to judge the run by: the lowest that told of all but a few steps, as ranks train in step."""
        if self._one_rank:
            return self
        ranks, counts = np.unique(self.rank, return_counts=True)
        most = np.flatnonzero(counts >= counts.max(initial=0) - _APART)
        return self.take(self.rank == ranks[most[0]]) if len(ranks) > 1 else self

    @property
    def _one_rank(self) -> bool:
        return bool((self.rank[1:] == self.rank[:-1]).all())

    def once(self) -> StepTable:
        """Each step of each rank once, in order: of a step done again the later counts."""
        if self._one_rank and (np.diff(self.step) > 0).all():
            return self  # an ordinary log
        order = np.lexsort((np.arange(len(self)), self.step, self.rank))
        last = np.append((np.diff(self.step[order]) != 0) | (np.diff(self.rank[order]) != 0), True)
        return self.take(order[last[: len(order)]])


@dataclass(frozen=True)
class _Place:
    """One place's rows, and what else it knows."""

    table: StepTable
    last: int
    first_end: float | None = None
    last_end: float | None = None


def gather(job: Job, index: LogIndex, told: Told | None = None) -> StepTable:
    """Read every place there is; errors in the workers' own files join the index."""
    found: dict[str, _Place] = {}
    if len(index.steps):
        found[LOG] = _Place(_from_log(index.steps, LOG), index.steps.last or 0)
    _workers(job, index, found)
    main = found.get(WORKERS) or found.get(LOG)
    events = read_events(event_files(job, index)) or read_wandb(wandb_files(job))
    if events is not None and _same_run(events, main.table if main else None):
        found[EVENTS] = _from_events(events)
    told = told if told is not None else read_progress(job.progress)
    if told.done:
        found[JOURNAL] = _from_journal(told)
    return replace(_best(found), begin=told.begin, phases=_phases(told), pauses=tuple(told.pauses))


def _workers(job: Job, index: LogIndex, found: dict[str, _Place]) -> None:
    steps, workers = index.steps, worker_files(job.dir, index.facts.hosts)
    furthest = max((s for p in workers.values() if (s := last_step(p)) is not None), default=None)
    behind = furthest is not None and furthest > (steps.last if steps.last is not None else -1)
    if workers and (behind or index.facts.summary is None):
        theirs = add_workers(index, workers)
        if theirs is not None and len(theirs):
            table = _from_log(theirs, WORKERS)
            del table.columns["line"]  # of other files than the log
            found[WORKERS] = _Place(table, max(furthest or 0, theirs.last or 0))
            for rank, step in theirs.last_by_rank.items():
                steps.last_by_rank[rank] = max(step, steps.last_by_rank.get(rank, -1))
    elif furthest is not None and LOG in found:
        found[WORKERS] = _Place(found[LOG].table.take(np.zeros(0, np.int64)), furthest)


def _best(found: dict[str, _Place]) -> StepTable:
    order = [name for name in (JOURNAL, WORKERS, LOG, EVENTS) if name in found]
    if not order:
        return _table(np.zeros(0, np.int64), np.zeros(0, np.int64), None)
    says = {name: found[name].last for name in order}
    last = max(says.values())
    used = next(name for name in order if says[name] == last)
    # The rows come from where most of them are: a journal may have begun late, an event file drops steps.
    # One that has a few steps more than the log has one rank's alone: with it nobody could be compared.
    least = {name: _APART if name == EVENTS else 0 for name in order}
    timed = {name: _distinct((own := found[name].table.lead()).step[np.isfinite(own.seconds)]) for name in order}
    fullest = max(order, key=lambda name: (timed[name] - least[name], -order.index(name)))
    best = replace(found[fullest].table, source=fullest)
    counts = {name: _distinct(found[name].table.step) for name in order}
    notes: list[str] = []
    for name in order:
        if name != fullest and len(found[name].table) and len(best):
            notes += _join(best, found[name].table, name)
    clock = next((n for n in (JOURNAL, EVENTS) if n in found), None)
    first_end = last_end = None
    if clock is not None and (known := found[clock]).last_end is not None:
        usual = known_median(best.seconds) if np.isfinite(best.seconds).any() else 0.0
        first_end, last_end = known.first_end, known.last_end + (last - known.last) * usual
    return replace(
        best, used=used, last=last, says=says, counts=counts, notes=tuple(notes), clock=clock, first_end=first_end,
        last_end=last_end, disagreement=_disagreement(says, used),
    )  # fmt: skip


def _distinct(step: Ints) -> int:
    """How many steps these are; a long run has hundreds of thousands, mostly in order."""
    return int(np.count_nonzero(np.diff(np.sort(step, kind="stable")))) + 1 if len(step) else 0


def _disagreement(says: dict[str, int], used: str) -> str:
    """A late event file is its nature; a log that stops early or a journal that is behind is worth a sentence."""
    behind = [f"{s} by the {n}" for n, s in says.items() if n != EVENTS and says[used] - s > _APART]
    return f"step {says[used]} by the {used}, {', '.join(behind)}" if behind else ""


def _same_run(events: EventSteps, told: StepTable | None) -> bool:
    """A folder shared by several jobs holds foreign files: the durations of common steps tell ours."""
    if told is None:
        return True
    own = told.lead().once()
    _, ours, theirs = np.intersect1d(own.step, events.step, return_indices=True)
    a, b = own.seconds[ours], events.seconds[theirs]
    known = np.isfinite(a) & np.isfinite(b) & (a > 0)
    return not known.any() or median(np.abs(b[known] / a[known] - 1.0)) < _SAME


def _join(table: StepTable, other: StepTable, name: str) -> list[str]:
    """Fill what the rows lack from another place; where the two disagree about the same steps, only say so."""
    theirs = other.once()
    keys, known = (t.rank.astype(object) * MOST_STEPS + t.step for t in (table, theirs))
    where = {int(k): i for i, k in enumerate(known)}
    pairs = [(i, where[k]) for i, k in enumerate(keys) if k in where]
    if not pairs:
        return []
    ours, at = (np.array(c) for c in zip(*pairs, strict=True))
    a, b = table.seconds[ours], theirs.seconds[at]
    both = np.isfinite(a) & np.isfinite(b) & (a > 0)
    apart = np.abs(b[both] - a[both])
    if both.any() and median(apart / a[both]) > _SAME and median(apart) > _SAME_S:
        share = 100 * median(apart / a[both])
        return [f"{table.source} and {name} time the same steps {share:.0f} % apart: {table.source} is used"]
    if table.source == LOG:  # three digits there, all of them here
        more = both & (np.abs(b - a) <= _ROUNDING)
        table.columns["seconds"] = seconds = table.seconds.copy()  # the log's own figures stay
        seconds[ours[more]] = b[more]
    for name, known_there in theirs.columns.items():
        table.columns[name] = own = table.column(name).copy()
        lacking = ~np.isfinite(own[ours])
        own[ours[lacking]] = known_there[at[lacking]]
    return []


def _table(rank: Ints, step: Ints, source: str | None, **columns: Floats | Ints) -> StepTable:
    return StepTable(rank, step, {name: np.asarray(column, float) for name, column in columns.items()}, source)


def _from_log(steps: Steps, source: str) -> StepTable:
    """All ranks' lines where they were read, else the one rank's."""
    tables = []
    for rank, own in sorted({steps.rank or 0: steps, **steps.others}.items()):
        ranks = (
            np.full(len(own), rank, np.int64) if rank else np.zeros(len(own), np.int64)
        )  # of zeros no page is touched
        told = {"written": own.written} if len(own.written) else {}
        tables.append(_table(ranks, own.step, source, seconds=own.seconds, tgs=own.tgs, line=own.line, **told))
    if len(tables) == 1:
        return tables[0]
    names = [name for name in _COLUMNS if any(name in t.columns for t in tables)]
    return StepTable(
        np.concatenate([t.rank for t in tables]),
        np.concatenate([t.step for t in tables]),
        {name: np.concatenate([t.column(name) for t in tables]) for name in names},
        source,
    )


def _from_events(events: EventSteps) -> _Place:
    ranks = np.zeros(len(events.step), np.int64)
    table = _table(ranks, events.step, EVENTS, seconds=events.seconds, tgs=events.tgs, end=events.written)
    return _Place(table, int(events.step[-1]), float(events.written[0]), float(events.written[-1]))


def _from_journal(told: Told) -> _Place:
    rows = sorted(told.done, key=lambda d: d.rank)  # the order within a rank is that of the file
    columns = np.array([(d.seconds, d.tgs, d.tflops, d.mfu, d.data_wait_s, d.at) for d in rows], float)
    names = ("seconds", "tgs", "tflops", "mfu", "data_wait_s", "end")
    table = _table(
        np.array([d.rank for d in rows], np.int64),
        np.array([d.step for d in rows], np.int64),
        JOURNAL,
        **dict(zip(names, columns.T, strict=True)),
    )
    ends = table.column("end")
    return _Place(table, int(table.step.max()), float(ends[0]), float(ends.max()))


def _phases(told: Told) -> dict[str, float]:
    """Seconds of each phase that the ranks timed; done together, so the slowest counts."""
    spans: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for pause in told.pauses:
        if pause.state == "end" and pause.phase in _TIMED and np.isfinite(pause.seconds):
            own = spans.setdefault(pause.phase, {}).setdefault(pause.rank, [])
            own.append((pause.at - pause.seconds, pause.at))
    return {name: max(_own_seconds(spans, name, rank) for rank in by_rank) for name, by_rank in spans.items()}


def _own_seconds(spans: dict[str, dict[int, list[tuple[float, float]]]], name: str, rank: int) -> float:
    """A rank's time in a phase; what it compiled or restored while it initialised counts there, not as init."""
    own = spans[name][rank]
    total = sum(end - begin for begin, end in own)
    if name != "init":
        return total
    others = sorted(span for other, ranks in spans.items() if other != name for span in ranks.get(rank, []))
    done = -np.inf  # nested phases may overlap each other: each moment is taken off once
    for begin, end in others:
        left = max(begin, done)
        total -= sum(max(0.0, min(end, b) - max(left, a)) for a, b in own)
        done = max(done, end)
    return max(total, 0.0)
