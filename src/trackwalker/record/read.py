"""The record of one run: what its directory says about it, read once. Metrics may add to it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from trackwalker.errors import EvidenceError, NotAJobError
from trackwalker.job import journal
from trackwalker.job.ending import told_by
from trackwalker.job.layout import NAME_FORM, Job
from trackwalker.job.processes import is_live
from trackwalker.job.run import RunRecord, load_run, ours
from trackwalker.job.shorthand import snapshot_time
from trackwalker.logs.attempts import Attempt, attempts, keep_last
from trackwalker.logs.facts import LogFacts, Start
from trackwalker.logs.failures.findings import Stopped
from trackwalker.logs.failures.roles import Roles, assign
from trackwalker.logs.formats.workers import add_earlier, earlier_parts, worker_files
from trackwalker.logs.scanning.index import LogIndex, index_logs, rank_files
from trackwalker.record import accounting as slurm
from trackwalker.record.accounting import Accounting
from trackwalker.record.checkpoints import on_disk
from trackwalker.record.clock import from_utc
from trackwalker.record.journal import NAME as JOURNAL
from trackwalker.record.journal import Told, read_progress
from trackwalker.record.masks import Masks
from trackwalker.record.phases import Phase, find_phases
from trackwalker.record.projection import Progress, project
from trackwalker.record.stall import Silence, Stall, find_stall
from trackwalker.record.status import Recording, Standing, Status, status_of
from trackwalker.record.steps import EVENT_LAG_S, EVENTS, StepTable, gather
from trackwalker.record.timeline import Timeline, mark, timeline_of
from trackwalker.record.topology import Held, gpus_held

Answer = dict[str, list[dict[str, str]]] | str  # what sacct said about many jobs at once


@dataclass(frozen=True)
class Clock:
    """What is known of the run's time: whether it lives, now, and when its work ended."""

    live: bool
    start: float | None = None
    now: float | None = None  # only for a live run
    end_of_work: float | None = None  # a stop, a failure, an end, as our journal or the scheduler dates it
    ended: float | None = None  # when everything was over
    elapsed_s: float | None = None  # wall time of this attempt so far
    wall_s: float | None = None  # of all attempts, None where the earlier ones' is not known


@dataclass(frozen=True)
class Record:
    """One run: who believes what it says need not open its files again."""

    job: Job
    index: LogIndex
    run: RunRecord | None
    events: list[dict[str, Any]]
    told: Told
    table: StepTable  # of all ranks
    attempts: list[Attempt]
    accounting: Accounting
    clock: Clock
    timeline: Timeline | None
    masks: Masks  # of the timeline's steps
    progress: Progress
    stall: Stall | None
    roles: Roles
    status: Status
    damage: tuple[str, ...] = ()

    @property
    def facts(self) -> LogFacts:
        """What the main log states."""
        return self.index.facts

    @property
    def steps(self) -> StepTable:
        """The lead rank's steps in the order they were done, those done again included."""
        return self.table.lead()

    @property
    def hosts(self) -> list[str]:
        """By rank, the host or lane it ran on."""
        if self.run is not None:
            return [r.host for r in self.run.ranks]
        return self.facts.hosts or list(self.accounting.hosts)

    @property
    def nodes(self) -> int | None:
        """On how many machines it ran: lanes of one machine are one node."""
        if self.run is not None and self.run.ranks:
            return len({r.node for r in self.run.ranks})
        header = self.facts.header.get("NNODES", "")
        told = int(header) if header.isascii() and header.isdigit() and int(header) > 0 else None
        return self.accounting.nodes or told or len(self.facts.hosts) or None

    @property
    def ranks(self) -> int | None:
        """How many ranks it had."""
        if self.run is not None and self.run.ranks:
            return len(self.run.ranks)
        return len(self.index.ranks_seen) or None

    @cached_property
    def start(self) -> tuple[str, Start]:
        """How it began, and the file that tells: the log, or, where that is silent on communicators, a worker's own."""
        told = self.facts.start
        workers = {} if told.made else worker_files(self.job.dir, self.facts.hosts)
        if workers:
            with contextlib.suppress(EvidenceError):
                own = index_logs(workers[min(workers)]).facts
                if own.start.made or told.restored is None:
                    return own.path.name, own.start
        return self.facts.path.name, told

    def gpus(self, recorded: int | None = None) -> Held:
        """How many GPUs it held; `recorded` is how many a recording saw."""
        by_rank = [len(places) for places in self.facts.devices.values()]  # several ranks of a node tell of its GPUs
        told = max(max(by_rank) * (self.nodes or len(by_rank)), sum(by_rank)) if by_rank else None
        return gpus_held(self.accounting.gpus, told, recorded)

    @property
    def restarts(self) -> list[int]:
        """The first steps of later attempts."""
        return [a.first_step for a in self.attempts[1:] if a.first_step is not None]

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Its stretches of one speed, the slow ones marked; a recording may know a better clock, and see more."""
        return find_phases(self.timeline, self.masks, self.clock.live)

    def marks(self, timeline: Timeline | None) -> Masks:
        """The masks of a course of this run, which may be the record's own with a better clock."""
        return mark(timeline, self.facts, self.table.pauses, self.restarts)

    def status_with(self, stalled: bool, timeline: Timeline | None, recording: Recording | None) -> Status:
        """How it stands, with what a recording adds."""
        return status_of(_standing(self, self.roles, stalled, timeline, recording))


def read_record(job: Job, sacct: Answer | None = None, every_rank: bool = False) -> Record:
    """Read a job's files once; changes no byte of them. Damaged parts are named in `damage` and left out.

    `sacct` is an answer already at hand for many jobs; without one the scheduler is asked where the log leaves a doubt.
    `every_rank` reads the step lines of all ranks, for those who compare ranks.
    """
    if job.log is None:
        raise NotAJobError(f"{job.label} has no log, so there is nothing to read")
    index = index_logs(job.log, rank_files(job.dir), every_rank, job.more)
    for part in earlier_parts(job.log):
        add_earlier(index, part)
    tries = attempts(index)
    if tries[-1].relaunched:
        keep_last(index, tries[-1])
    damage: list[str] = []
    run, events, told = _run(job, damage), _events(job, damage), read_progress(job.progress)
    if told.unreadable > 0:
        damage.append(f"{told.unreadable} lines of {JOURNAL} could not be read and were left out")
    table = gather(job, index, told)
    _refuse_what_is_no_log(job, index, table, run)
    said = slurm.with_witness(_ask(job, index, sacct), told_by(job))
    overruled = slurm.apply(said, index)
    clock = _clock(job, index, run, events, table, said, tries[-1].relaunched)
    facts = index.facts
    if facts.ends_mid_line and facts.summary is None and not clock.live:
        damage.append(f"the log {job.log.name} ends in the middle of line {facts.lines}: its writer was cut off")
    timeline = timeline_of(table, facts, None, clock.start)
    slow = mark(timeline, facts, table.pauses, [a.first_step for a in tries[1:] if a.first_step is not None])
    progress = project(index, table.lead(), timeline, slow, tries, clock.wall_s, clock.now, on_disk(job, index))
    attempt_s = tries[-1].seconds if len(tries) > 1 else progress.training_s or 0.0
    stall = find_stall(timeline, slow, facts, _silence(index, table, clock, progress, attempt_s), progress.all_done)
    done = progress.all_done or (facts.summary is not None and facts.summary.exit == 0)
    stopped = Stopped(stall.says, stall.before_first) if stall is not None else None
    roles = assign(index, stopped, done, overruled)
    _confirm_cancel(roles, said)
    record = Record(
        job, index, run, events, told, table, tries, said, clock, timeline, slow, progress, stall, roles,
        "indeterminate", tuple(damage),
    )  # fmt: skip
    return replace(record, status=record.status_with(stall is not None, timeline, None))


def _refuse_what_is_no_log(job: Job, index: LogIndex, table: StepTable, run: RunRecord | None) -> None:
    """A text in which nothing is a launcher's, a trainer's or a scheduler's word is somebody else's file."""
    facts = index.facts
    known = facts.header or facts.config or facts.stages or facts.exits or facts.summary or facts.cancel
    if known or len(table) or index.hits or index.harmless or run is not None or job.dir is not None:
        return
    if NAME_FORM.match(index.path.stem):
        return  # it is named as a job's log: the job said nothing that we know
    if facts.tracebacks or facts.params_ranks or facts.barrier_ranks or facts.compiles or facts.finished:
        return
    raise NotAJobError(
        f"{job.log} is no log of a training run: no launcher's header, no setting, no step and no error is in it"
    )


def _standing(
    record: Record, roles: Roles, stalled: bool, timeline: Timeline | None, recording: Recording | None
) -> Standing:
    last = int(timeline.steps[-1]) if timeline is not None and len(timeline) else None
    return Standing(
        record.index, roles.primary, record.clock.live, ours(record.run), stalled, record.progress.all_done,
        record.progress.last_step if last is None else last, record.progress.total_steps, record.accounting,
        any(e.get("kind") == "first-failure" for e in record.events) or record.facts.first_failure is not None,
        recording,
    )  # fmt: skip


def _silence(index: LogIndex, table: StepTable, clock: Clock, progress: Progress, attempt_s: float) -> Silence:
    """What is known without a recording."""
    until = clock.now if clock.live else clock.end_of_work
    outside = None if clock.elapsed_s is None else clock.elapsed_s - (progress.setup_s or 0.0)
    return Silence(
        until,
        table.last_end,
        EVENT_LAG_S if table.clock == EVENTS else 0.0,
        None if outside is None else outside - attempt_s - index.facts.coredump_s,
        index.silent_s,
        outside,
    )


def _run(job: Job, damage: list[str]) -> RunRecord | None:
    try:
        return load_run(job.run_json)
    except EvidenceError as e:
        damage.append(str(e))
        return None


def _events(job: Job, damage: list[str]) -> list[dict[str, Any]]:
    if job.events is None:
        return []
    records = journal.read(job.events)
    if records.unreadable:
        damage.append(f"{job.events.name} cannot be read: {records.unreadable}")
    foreign = records.damaged - (1 if records.torn_tail else 0)  # an unfinished last line is a writer at work
    if foreign > 0:
        damage.append(f"{foreign} lines of {job.events.name} could not be read and were left out")
    return _one_failure_first([e for e in records.items if e.get("kind") != "first-failure" or _names_a_failure(e)])


def _one_failure_first(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of what each node saw fail first, only what failed first of all: the end of the run tells, from all nodes."""
    ends = sorted((e for e in events if e.get("kind") == "run-end" and _dated(e)), key=lambda e: float(e["t"]))
    out = []
    for event in events:
        if event.get("kind") == "first-failure" and _dated(event):
            data = next((e.get("data") for e in ends if e["t"] >= event["t"]), None)
            first = data.get("first") if isinstance(data, dict) else None
            if isinstance(first, dict) and type(first.get("rank")) is int:
                if first["rank"] != event["rank"]:
                    continue
                event = event | ({"t": first["ended"]} if isinstance(first.get("ended"), float) else {})
        out.append(event)
    return out


def _dated(event: dict[str, Any]) -> bool:
    return isinstance(event.get("t"), int | float)


def _names_a_failure(event: dict[str, Any]) -> bool:
    """Whether the record of the first failure has what every conclusion from it needs: rank, exit code, cause."""
    data = event.get("data") or {}
    return type(event.get("rank")) is int and type(data.get("exit")) is int and isinstance(data.get("cause"), str)


def _ask(job: Job, index: LogIndex, answer: Answer | None) -> Accounting:
    summary = index.facts.summary
    if answer is None:
        if summary is not None and summary.exit == 0:
            return Accounting(why_unknown="not asked: the log says how it ended")
        answer = slurm.ask([job.id])
    return slurm.accounting_of(job.id, answer, index)


def cancelled_at(facts: LogFacts) -> float | None:
    """When the scheduler says that it cancelled the job."""
    with contextlib.suppress(ValueError):  # a date that is none
        return from_utc(facts.cancel_time) if facts.cancel_time else None
    return None


def _clock(
    job: Job, index: LogIndex, run: RunRecord | None, events: list[dict[str, Any]], table: StepTable,
    said: Accounting, relaunched: bool,
) -> Clock:  # fmt: skip
    live = is_live(job.state) or said.live
    now = time.time() if live else None
    dated = [(e.get("kind"), float(e["t"])) for e in events if _dated(e)]
    stops = [t for kind, t in dated if kind in ("first-failure", "stop")]
    over = [t for kind, t in dated if kind == "run-end"]
    ended = None if live else over[-1] if over else said.end
    facts, begun = index.facts, said.start or table.begin
    if facts.summary is not None and facts.summary.wall_s is not None:
        elapsed: float | None = float(facts.summary.wall_s)
    elif said.elapsed_s is not None:
        elapsed = said.elapsed_s
    elif begun is not None and (now or ended) is not None:
        elapsed = (now or ended or begun) - begun
    else:
        # A log cut before its summary may still have the end of every stage.
        train = [s.seconds for s in facts.stages if s.name == "Training" and s.seconds is not None]
        setup = sum(s.seconds or 0 for s in facts.stages if s.what == "END" and s.name != "Training")
        elapsed = float(setup + train[-1]) if train else None
    if (cancelled := cancelled_at(facts)) is not None:
        stops.append(cancelled)
    wall = said.total_elapsed_s if relaunched else elapsed
    if wall is not None:  # a run lasts as long as its steps, whatever a summary of its last part says
        wall = max(wall, float(np.nansum(table.lead().seconds)))
    return Clock(
        live, run.created if run is not None else snapshot_time(job), now, min(stops) if stops else ended, ended,
        elapsed, wall,
    )  # fmt: skip


def _confirm_cancel(roles: Roles, said: Accounting) -> None:
    """The scheduler's word on a cancel removes the doubt that the log leaves."""
    if said.state != "CANCELLED":
        return
    for at, finding in enumerate(roles.findings):
        if finding.id == "cancelled":
            roles.findings[at] = replace(finding, why=said.says, proves_not="why it was cancelled")
