"""Everything known about one job, opened once for all questions."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trackwalker.diagnose import timeline as tl
from trackwalker.diagnose.clock import from_glog, from_utc
from trackwalker.diagnose.identity import check_identity
from trackwalker.diagnose.other_trainers import asked_steps, complete, final_offset
from trackwalker.diagnose.stamped import put_on_the_clock
from trackwalker.diagnose.triage import Triage, triage
from trackwalker.errors import EvidenceError, MissingToolError, NotAJobError
from trackwalker.job import journal
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.job.resolve import follow
from trackwalker.job.run import RunRecord, load_run
from trackwalker.logs.facts import LogFacts
from trackwalker.logs.reader import read_log
from trackwalker.record.topology import Topology, make_topology
from trackwalker.telemetry.quality import Check, check_quality
from trackwalker.telemetry.store import Telemetry, open_database

_ARTIFACT = re.compile(r"artifact_(\d{9,11})_")

Opener = Callable[[Path], AbstractContextManager[Telemetry]]  # a server keeps databases open between questions


@dataclass
class Case:
    """One job as evidence: its log, its journals, its metrics, and what is wrong with them."""

    job: Job
    log: LogFacts
    run: RunRecord | None
    events: list[dict[str, Any]]
    telemetry: Telemetry | None
    timeline: tl.Timeline | None
    hosts: list[str]  # by rank
    start: float | None
    end: float | None  # last moment the evidence speaks of
    live: bool
    damage: list[str] = field(default_factory=list)
    bytes_read: int = 0
    checks: list[Check] = field(default_factory=list)  # is the recording itself to be trusted?
    seen: Triage | None = None

    @cached_property
    def topology(self) -> Topology:
        """Which rank reports under which name, on which machine, with which GPUs."""
        ranks = self.run.ranks if self.run is not None else []
        known = [] if ranks else self._labels("hw_rank_info")
        return make_topology(ranks, self.hosts, known, self._labels("hw_gpu_rank_info"))

    def _labels(self, metric: str) -> list[dict[str, str]]:
        if self.telemetry is None or metric not in self.telemetry.metrics():
            return []
        begin, end = self.telemetry.range()
        for window in (min(600.0, end - begin), end - begin):  # of a large cluster the last minutes are enough
            found = self.telemetry.instant(f"last_over_time({metric}[{max(1, round(window))}s])", end)
            if found:
                return [sample.labels for sample in found]
        return []

    @property
    def trusted(self) -> list[str]:
        """The job's hosts whose numbers can be believed: a frozen exporter says nothing about its host."""
        frozen = {h for c in self.checks if c.name == "ghost-data" for h in c.hosts}
        return [h for h in self.hosts if h not in frozen]

    @property
    def triage(self) -> Triage:
        """What the log alone says: failure classes with their roles."""
        if self.seen is None:
            self.seen = triage(self.job)
        return self.seen

    def check(self, name: str) -> Check | None:
        """One of the checks of the recording."""
        return next((c for c in self.checks if c.name == name), None)

    def event(self, kind: str) -> dict[str, Any] | None:
        """The first event of a kind in time: the nodes' journals are merged as they come, not in order."""
        found = [e for e in self.events if e.get("kind") == kind]
        return min(found, key=lambda e: e["t"] if isinstance(e.get("t"), int | float) else math.inf, default=None)

    @property
    def end_of_work(self) -> float | None:
        """When something began to end the run (a cancel, a failure, a kill): what follows is teardown."""
        times = [float(e["t"]) for e in self.events if e.get("kind") in ("first-failure", "stop")]
        if self.log.cancel_time:
            times.append(from_utc(self.log.cancel_time))
        crash = self.heartbeat_time
        if crash is not None:
            times.append(crash)
        return min(times) if times else self.end

    @property
    def heartbeat_time(self) -> float | None:
        """When the coordination service declared tasks dead."""
        beat = self.log.heartbeat
        near = self.end or self.start
        return from_glog(beat.clock, near) if beat and beat.clock and near is not None else None

    @property
    def total_steps(self) -> int | None:
        """How many steps the run was asked for."""
        configured = self.log.number("steps")
        return configured if configured is not None else asked_steps(self.triage.index)

    @property
    def final_step(self) -> int | None:
        """The number that the last step told of has when all are done."""
        total = self.total_steps
        return None if total is None else total - 1 + final_offset(self.triage.index)

    @property
    def all_done(self) -> bool:
        """Whether the last step was told of, by the best source or by the log, which may count otherwise."""
        last = [int(self.timeline.steps[-1])] if self.timeline is not None and len(self.timeline) else []
        told = self.triage.index.steps.last
        last += [told] if told is not None else []
        return self.final_step is not None and max(last, default=-1) >= self.final_step


@contextmanager
def open_case(job: Job, opener: Opener | None = None, seen: Triage | None = None) -> Iterator[Case]:
    """Read a job; changes no byte of it. Damaged parts are named in `damage` and left out.

    `seen` is a triage already made of the same evidence.
    """
    if job.log is None:
        raise NotAJobError(f"{job.label} has no log, so there is nothing to read")
    log = read_log(job.log)
    damage: list[str] = []
    run = _tolerant_run(job, damage)
    events = _journal(job.events, damage)
    progress = _journal(job.progress, damage)
    live = is_live(job.state)
    if log.ends_mid_line and log.summary is None and not live:
        damage.append(f"the log {job.log.name} ends in the middle of line {log.lines}: its writer was cut off")
    with ExitStack() as stack:
        telemetry = _open_telemetry(job, opener or open_database, stack, damage)
        start = _start(job, run, telemetry)
        seen = seen or triage(job)
        timeline = tl.from_progress(progress)
        if timeline is None and seen.record.last is not None and seen.record.last > (log.last_step or -1) + 1:
            timeline = tl.from_record(seen.record, log, telemetry, start)
        timeline = timeline or tl.from_log(log, telemetry, start)
        if timeline is not None and not timeline.exact and telemetry is not None and start is not None:
            timeline = put_on_the_clock(timeline, seen.index.steps, job.log, start, telemetry.range()[1])
        hosts = [r.host for r in run.ranks] if run else log.hosts
        end = _end(log, events, telemetry, timeline, start, live)
        finished = log.summary is not None and log.summary.exit == 0
        checks = check_quality(telemetry, hosts, end, job.database is not None, finished)
        identity = check_identity(telemetry, log) if telemetry is not None else None
        if identity is not None:
            checks.append(identity)
            telemetry = telemetry if identity.ok else None  # another job's numbers decide nothing here
        complete(log, seen.index)
        if timeline is None and telemetry is not None and not log.exits:  # a log that was lost, not a start that failed
            timeline = tl.from_scalars(telemetry)
        yield Case(
            job=job,
            log=log,
            run=run,
            events=events,
            telemetry=telemetry,
            timeline=timeline,
            hosts=hosts,
            start=start,
            end=end,
            live=live,
            damage=damage,
            bytes_read=log.size,
            checks=checks,
            seen=seen,
        )


def _tolerant_run(job: Job, damage: list[str]) -> RunRecord | None:
    try:
        return load_run(job.run_json)
    except EvidenceError as e:
        damage.append(str(e))
        return None


def _journal(path: Path | None, damage: list[str]) -> list[dict[str, Any]]:
    if path is None:
        return []
    records = journal.read(path)
    foreign = records.damaged - (1 if records.torn_tail else 0)  # an unfinished last line is a writer at work
    if foreign > 0:
        damage.append(f"{foreign} lines of {path.name} could not be read and were left out")
    return records.items


def _open_telemetry(job: Job, opener: Opener, stack: ExitStack, damage: list[str]) -> Telemetry | None:
    if job.database is None or not any(job.database.iterdir()):
        return None
    try:
        telemetry = stack.enter_context(opener(job.database))
    except MissingToolError:
        raise
    except EvidenceError as e:
        damage.append(str(e))
        return None
    damage.extend(telemetry.damage)
    return telemetry


def _start(job: Job, run: RunRecord | None, telemetry: Telemetry | None) -> float | None:
    if run is not None:
        return run.created
    artifact = follow(job.dir / "artifact") if job.dir else None
    match = _ARTIFACT.search(str(artifact)) if artifact is not None else None
    if match:  # upstream's snapshot folder carries the time of submission
        return float(match[1])
    return telemetry.range()[0] if telemetry else None


def _end(
    log: LogFacts,
    events: list[dict[str, Any]],
    telemetry: Telemetry | None,
    timeline: tl.Timeline | None,
    start: float | None,
    live: bool,
) -> float | None:
    if live:
        return time.time()
    finished = [float(e["t"]) for e in events if e.get("kind") == "run-end"]
    if finished:
        return finished[-1]
    if start is not None and log.summary is not None and log.summary.wall_s is not None:
        return start + log.summary.wall_s
    known = [float(e["t"]) for e in events if e.get("stage") != "supervise"]  # that is said of it, later
    if telemetry is not None:
        known.append(telemetry.range()[1])
    if timeline is not None and timeline.last_end is not None:
        known.append(timeline.last_end)
    return max(known) if known else None
