"""Where a run's steps are written down, and which of the places to believe (spec 1.4).

In order of authority: our own journal, the workers' own files, TensorBoard's event file, the log. The log is only a
lower bound: its forwarding can stop while the run goes on. A step that any of them calls completed was completed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trackwalker.job import journal
from trackwalker.job.layout import Job
from trackwalker.logs.index import LogIndex
from trackwalker.logs.tfevents import MOST_STEPS, EventSteps, read_events
from trackwalker.logs.workers import add_workers, last_step, worker_files

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Spans = dict[str, dict[int, list[tuple[float, float]]]]  # by phase and rank: begin and end

JOURNAL, WORKERS, EVENTS, LOG = "progress.jsonl", "worker logs", "event file", "log"
EVENT_LAG_S = 240.0  # the writer flushes every two minutes and a step is written when the next one ends
_SAME = 0.02  # log and event file time a step within a few milliseconds
_APART = 3  # ranks and writers differ by a step or two without disagreeing
_EVENT_FILE = re.compile(r"^events\.out\.tfevents\.(\d{9,11})\.([^.]+(?:\.[^.]+)*?)\.\d+\.\d+")


@dataclass
class StepRecord:
    """The steps of a run from the best place, and what each place says about the last one."""

    step: Ints
    seconds: Floats
    tgs: Floats
    line: Ints | None  # of the log, where the steps come from it
    used: str | None
    last: int | None
    says: dict[str, int] = field(default_factory=dict)  # place -> last step
    disagreement: str = ""
    last_end: float | None = None  # wall time at which the last step ended
    first_end: float | None = None
    begin: float | None = None  # wall time of the first sign of the ranks
    phases: dict[str, float] = field(default_factory=dict)  # seconds that the ranks timed themselves, by phase
    written: Floats | None = None  # the time of each step's line by the trainer's own clock, of whatever zone

    def __len__(self) -> int:
        return len(self.step)


def gather(job: Job, index: LogIndex) -> StepRecord:
    """Read every place there is; errors in the workers' own files join the index."""
    steps = index.steps
    found: dict[str, StepRecord] = {}
    if len(steps):
        own = steps.written if len(steps.written) else None
        found[LOG] = StepRecord(steps.step, steps.seconds, steps.tgs, steps.line, LOG, steps.last, written=own)
    workers = worker_files(job.dir, index.facts.hosts)
    if workers:
        furthest = max((s for p in workers.values() if (s := last_step(p)) is not None), default=None)
        behind = furthest is not None and furthest > (steps.last if steps.last is not None else -1)
        if behind or index.facts.summary is None:
            theirs = add_workers(index, workers)
            if theirs is not None and len(theirs):
                found[WORKERS] = StepRecord(
                    theirs.step, theirs.seconds, theirs.tgs, None, WORKERS, max(furthest or 0, theirs.last or 0)
                )
                for rank, step in theirs.last_by_rank.items():
                    steps.last_by_rank[rank] = max(step, steps.last_by_rank.get(rank, -1))
        elif furthest is not None and LOG in found:
            found[WORKERS] = StepRecord(*_series(found[LOG]), WORKERS, furthest)
    events = read_events(event_files(job, index))
    if events is not None and _same_run(events, found.get(WORKERS) or found.get(LOG)):
        found[EVENTS] = _from_events(events)
    if (records := _from_journal(job)) is not None:
        found[JOURNAL] = records
    return _best(found)


def _series(record: StepRecord) -> tuple[Ints, Floats, Floats, Ints | None]:
    return record.step, record.seconds, record.tgs, record.line


def _best(found: dict[str, StepRecord]) -> StepRecord:
    order = [name for name in (JOURNAL, WORKERS, EVENTS, LOG) if name in found]
    if not order:
        empty = np.zeros(0)
        return StepRecord(np.zeros(0, np.int64), empty, empty, None, None, None)
    says = {name: found[name].last or 0 for name in order}
    last = max(says.values())
    used = next(name for name in order if says[name] == last)
    # The series comes from where most of it is: a journal may have begun late, an event file drops steps.
    fullest = max(order, key=lambda name: (int(np.isfinite(found[name].seconds).sum()), -order.index(name)))
    best = found[fullest]
    out = StepRecord(*_series(best), used, last, says, written=best.written)
    timed = next((found[n] for n in (JOURNAL, EVENTS) if n in found and found[n].last_end is not None), None)
    if timed is not None and timed.last is not None:
        usual = float(np.nanmedian(best.seconds)) if np.isfinite(best.seconds).any() else 0.0
        out.last_end = (timed.last_end or 0.0) + (last - timed.last) * usual
        out.first_end, out.begin, out.phases = timed.first_end, timed.begin, timed.phases
    out.disagreement = _disagreement(says, used)
    return out


def _disagreement(says: dict[str, int], used: str) -> str:
    """A late event file is its nature; a log that stops early or a journal that is behind is worth a sentence."""
    behind = [f"{s} by the {n}" for n, s in says.items() if n != EVENTS and says[used] - s > _APART]
    return f"step {says[used]} by the {used}, {', '.join(behind)}" if behind else ""


def _same_run(events: EventSteps, told: StepRecord | None) -> bool:
    """A folder shared by several jobs holds foreign files: the durations of common steps tell ours."""
    if told is None:
        return True
    _, ours, theirs = np.intersect1d(told.step, events.step, return_indices=True)
    a, b = told.seconds[ours], events.seconds[theirs]
    known = np.isfinite(a) & np.isfinite(b) & (a > 0)
    return not known.any() or float(np.median(np.abs(b[known] / a[known] - 1.0))) < _SAME


def _from_events(events: EventSteps) -> StepRecord:
    return StepRecord(
        events.step, events.seconds, events.tgs, None, EVENTS, int(events.step[-1]),
        last_end=float(events.written[-1]), first_end=float(events.written[0]),
    )  # fmt: skip


def _from_journal(job: Job) -> StepRecord | None:
    if job.progress is None:
        return None
    rows: dict[int, list[tuple[int, float, float, float]]] = {}
    phases: Spans = {}
    begin: float | None = None
    for record in journal.read(job.progress).items:
        try:
            rank, at, phase = int(record.get("rank", 0)), float(record["t"]), record.get("phase")
            begin = at if begin is None else min(begin, at)
            if phase == "train" and 0 <= int(record["step"]) < MOST_STEPS:
                told = (record.get(name) for name in ("seconds", "tokens_per_s"))
                seconds, tgs = (np.nan if value is None else float(value) for value in told)
                rows.setdefault(rank, []).append((int(record["step"]), seconds, tgs, at))
            elif record.get("state") == "end" and phase in ("init", "compile", "restore", "checkpoint"):
                spans = phases.setdefault(phase, {}).setdefault(rank, [])
                spans.append((at - float(record["seconds"]), at))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    if not rows:
        return None
    own = rows[min(rows)]
    columns = np.array(own, float)
    last = max(r[0] for each in rows.values() for r in each)
    # Done together: the slowest counts.
    took = {name: max(_own_seconds(phases, name, rank) for rank in by_rank) for name, by_rank in phases.items()}
    return StepRecord(
        columns[:, 0].astype(np.int64), columns[:, 1], columns[:, 2], None, JOURNAL, last,
        last_end=max(r[3] for each in rows.values() for r in each), first_end=float(columns[0, 3]), begin=begin,
        phases=took,
    )  # fmt: skip


def _own_seconds(phases: Spans, name: str, rank: int) -> float:
    """A rank's time in a phase; what it compiled or restored while it initialised counts there, not as init."""
    own = phases[name][rank]
    total = sum(end - begin for begin, end in own)
    if name != "init":
        return total
    others = sorted(span for other, ranks in phases.items() if other != name for span in ranks.get(rank, []))
    done = -np.inf  # nested phases may overlap each other: each moment is taken off once
    for begin, end in others:
        left = max(begin, done)
        total -= sum(max(0.0, min(end, b) - max(left, a)) for a, b in own)
        done = max(done, end)
    return max(total, 0.0)


def event_files(job: Job, index: LogIndex) -> list[Path]:
    """The run's event files: in its directory, or where a checkpointing run shares one with its predecessors."""
    if job.dir is None:
        return []
    # Not everywhere below: dumps and checkpoints can hold a hundred thousand files.
    places = ("tensorboard", "*/tensorboard")
    own = [p for place in places for p in job.dir.glob(f"{place}/events.out.tfevents.*") if p.is_file()]
    if own:
        return sorted(own)
    shared = shared_folder(job.dir.parent, index.facts.setting("tensorboard_dir"))
    if shared is None or job.log is None:
        return []
    # Several jobs write here. Ours is on one of our hosts; of those, the newest that began before our log ended.
    ended = job.log.stat().st_mtime
    hosts = {h.split(".")[0] for h in index.facts.hosts}
    mine = []
    for path in shared.glob("events.out.tfevents.*"):
        match = _EVENT_FILE.match(path.name)
        if match and float(match[1]) <= ended and (not hosts or match[2].split(".")[0] in hosts):
            mine.append((float(match[1]), path))
    return [max(mine)[1]] if mine else []


def shared_folder(workspace: Path, setting: str | None) -> Path | None:
    """A path inside the container, found again in the workspace by its tail."""
    parts = [p for p in (setting or "").split("/") if p not in ("", ".", "..")]
    for begin in range(len(parts)):
        folder = workspace.joinpath(*parts[begin:])
        if len(parts) - begin >= 2 and folder.is_dir():
            return folder
    return None
