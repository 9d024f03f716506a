"""Which jobs are watched, and one job while it is: its readers, its course, how it stands."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError
from trackwalker.job.journal import has_ended, read
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.launch.job_state import Standing, find_job, scheduler_of, submitted
from trackwalker.watch.detect.live import Follower
from trackwalker.watch.detect.logtail import LogTail
from trackwalker.watch.detect.phases import Course
from trackwalker.watch.detect.rules import Signs

_AT_ONCE = 4 << 20  # bytes of a journal in one look
_FIRST = 32 << 20  # of a journal that is there already
_TELLING = frozenset({"first-failure", "kernel-kill", "ray-lost"})
_MOST_EVENTS = 50
_SOONEST_S, _LATEST_S = 2.0, 10.0
_STALE_S = 86_400.0  # a log that nobody has written to for a day, of a job nobody else speaks of


class Watched:
    """One job: what was read of it, and when to look again."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.own = job.run_json is not None and job.run_json.is_file()
        self.scheduler = scheduler_of(job)
        self.signs = Signs(Course())
        self.standing: Standing | None = None
        self.attempt = 0
        self.ended_at: float | None = None  # by its own record
        self.look_at = self.ask_at = self.alerts_at = 0.0
        self.lost_since: float | None = None  # nobody knows how it ended: it is asked again before that is told
        self._events = Follower(job.events) if job.events else None
        self._progress = Follower(job.progress, _AT_ONCE) if job.progress and self.own else None
        if self._progress is not None:
            self._progress.skip_to_last(_FIRST)
        self._log = LogTail(job.log) if job.log and not self.own else None
        self.had_metrics = False  # its Prometheus has answered
        self._fresh = False  # the backlog is read: what comes now has just been written

    def read(self, now: float) -> None:
        """Take in what is new."""
        course = self.signs.course
        for event in self._events.new() if self._events else []:
            self._event(event)
        while True:
            records = self._progress.new() if self._progress else self._log.new(now) if self._log else []
            for record in records:
                course.take(record, now if self._fresh and self._progress else None)
            source = self._progress or self._log
            if source is None or not source.behind:
                break
        if self._log is not None:
            course.periods = self._log.periods
        self._fresh = True
        pause = course.seconds[-1] / 3.0 if course.seconds else _SOONEST_S
        self.look_at = now + min(max(pause, _SOONEST_S), _LATEST_S)

    @property
    def log_ended(self) -> bool:
        """Whether an upstream job's launcher wrote its summary."""
        return self._log is not None and self._log.ended

    def _event(self, event: dict[str, Any]) -> None:
        kind, data = event.get("kind"), event.get("data") or {}
        with contextlib.suppress(KeyError, TypeError, ValueError):
            at = float(event["t"])
            if kind == "attempt-begin":
                self.attempt, self.ended_at = int(data.get("attempt", 0)), None
                self.signs.course.restart(at)
                self.signs.events, self.signs.attempt = [], self.attempt  # earlier failures are another attempt's
            elif kind == "run-end":
                self.ended_at = at
            elif kind in _TELLING:
                self.signs.events = [*self.signs.events, event][-_MOST_EVENTS:]


class Jobs:
    """The jobs to watch: those that were named, or all of a workspace that are not over."""

    def __init__(self, workspace: Path, names: Sequence[str] = ()) -> None:
        self.workspace = workspace
        self._names = list(names)
        self.named = bool(self._names)
        for name in self._names:
            find_job(name, workspace)  # a name that means nothing is an error now, not silence later

    def find(self, now: float) -> list[Job]:
        """The jobs that are there now."""
        if not self._names:
            return submitted(self.workspace)
        found = []
        for name in self._names:
            with contextlib.suppress(TrackwalkerError):
                found.append(find_job(name, self.workspace))
        return found


def was_over(job: Job, since: float, now: float) -> bool:
    """Whether a job seen for the first time was over before anybody watched."""
    source = job.log or job.run_json
    try:
        written = source.stat().st_mtime if source else since
    except OSError:
        return False
    if written >= since or is_live(job.state):
        return False
    if job.events is not None and has_ended(read(job.events).items):
        return True
    if now - written > _STALE_S:
        return True  # where it waits or runs all the same, its scheduler's queue brings it back
    if job.run_json is not None and job.run_json.is_file():
        return False
    tail = LogTail(job.log) if job.log else None
    if tail is not None:
        tail.new(now)
    return tail is not None and tail.ended
