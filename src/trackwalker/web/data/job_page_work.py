"""Diagnoses under way, and what the charts of job pages were given before: one per server, shared by all visitors."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import partial

from starlette.requests import Request

from trackwalker.agent.workspace import signature
from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.errors import EvidenceError, TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.job.run import load_run
from trackwalker.job.sharing import apart
from trackwalker.report.words import culprits, is_time
from trackwalker.web.data import heat
from trackwalker.web.data.cache import Cache
from trackwalker.web.data.heat import Grid
from trackwalker.web.data.workspace import WebWorkspace, is_long
from trackwalker.web.logs.log_times import Lines, Written, read_lines, written
from trackwalker.web.pages.render import in_thread, workspace_of

_FRESH_S = 60.0  # a running job's evidence grows all the time: its verdict is good for this long
_KEPT = 24
_GRIDS = 8


class Work:
    """What was begun for job pages."""

    def __init__(self, workspace: WebWorkspace) -> None:
        self._workspace = workspace
        self._tasks: dict[str, tuple[float, asyncio.Task[Diagnosis]]] = {}
        self._last: OrderedDict[str, tuple[float, Diagnosis]] = OrderedDict()
        self._grids: Cache[Grid] = Cache(_GRIDS)
        self._lines: Cache[Lines | None] = Cache(_GRIDS)
        self._written: Cache[Written] = Cache(_GRIDS)
        self.pages: Cache[str] = Cache(8)  # performance pages

    def known(self, job: Job) -> Diagnosis | None:
        """The verdict where there is one that is current, or nearly so; never waits for a diagnosis."""
        found = self._workspace.known_diagnosis(job)
        if found is not None:
            return found
        held = self._last.get(job.id)
        return held[1] if held is not None and time.monotonic() - held[0] < _FRESH_S else None

    def seconds(self, job: Job) -> float | None:
        """How long the diagnosis has been at work; None when none is."""
        held = self._tasks.get(job.id)
        return time.monotonic() - held[0] if held is not None else None

    async def diagnosis(self, job: Job, patience_s: float) -> Diagnosis | None:
        """The verdict, None when it takes longer than one visitor's patience; it goes on and is there for the next."""
        found = await in_thread(self.known, job)
        if found is not None:
            return found
        held = self._tasks.get(job.id)
        if held is None:
            task = asyncio.create_task(in_thread(self._workspace.diagnosis, job))
            task.add_done_callback(lambda done: self._finish(job.id, done))
            held = self._tasks[job.id] = (time.monotonic(), task)
        done, _ = await asyncio.wait({held[1]}, timeout=patience_s)
        return held[1].result() if done else None

    def _finish(self, job_id: str, task: asyncio.Task[Diagnosis]) -> None:
        self._tasks.pop(job_id, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._last[job_id] = (time.monotonic(), task.result())
        self._last.move_to_end(job_id)
        while len(self._last) > _KEPT:
            self._last.popitem(last=False)

    def verdict(self, job: Job) -> Verdict | None:
        """The best verdict at hand: of this server, made for a visitor or in the background, else the saved one."""
        found = self.known(job)
        return found.verdict if found is not None else self._workspace.verdict(job)

    def accused(self, job: Job) -> list[str]:
        """The hosts that the verdict at hand accuses."""
        verdict = self.verdict(job)
        return culprits(verdict) if verdict is not None else []

    def machines(self, job: Job) -> dict[str, str]:
        """The machine of each lane: what ranks share is recorded under the machine's name, not under theirs."""
        seen = self._workspace.known_triage(job) if job.log is not None else None
        try:  # nobody waits for a log to be read, as a chart would
            run = seen.record.run if seen is not None else load_run(job.run_json)
        except TrackwalkerError:
            run = None
        return {seat.host: seat.node for seat in (run.ranks if run is not None else []) if seat.host != seat.node}

    def busy(self, job: Job) -> tuple[float, float] | None:
        """From the first to the last step, as far as a verdict knows them."""
        found = self.known(job)
        ends = [p.time for p in found.story.steps if is_time(p.time)] if found is not None else []
        return (min(ends), max(ends)) if len(ends) > 1 else None

    def usual(self, job: Job) -> tuple[float, float] | None:
        """The longest time at full speed: what all hosts have then is what they usually have."""
        found = self.known(job)
        fast = [p for p in found.story.phases if not p.slow and p.end > p.start] if found is not None else []
        longest = max(fast, key=lambda p: p.end - p.start, default=None)
        return (longest.start, longest.end) if longest is not None else self.busy(job)

    def written(self, job: Job) -> Written:
        """When the lines of the log were written: asked at every zoom; the log is read once."""
        log, found = job.log, self.known(job)
        if log is None:
            raise EvidenceError("the job has written no log")
        story, state = found.story if found is not None else None, signature(job)
        seen = self._workspace.triage(job)
        read = partial(apart, read_lines) if is_long(job) else read_lines
        lines = self._lines.get(job.id, state, lambda: read(log))
        return self._written.get(job.id, (state, story is not None), lambda: written(lines, seen, story))

    def grid(self, job: Job, metric: str, how: str, start: float | None, end: float | None) -> Grid:
        """A metric by host and time; what was asked lately is not asked again."""

        def make() -> Grid:
            with self._workspace.metrics(job) as telemetry:
                return heat.ask(telemetry, metric, how, start, end)

        key = (job.id, metric, how, _whole(start), _whole(end))
        return self._grids.get(key, signature(job), make)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def work_of(request: Request) -> Work:
    """This server's."""
    state = request.app.state
    found: Work | None = getattr(state, "job_work", None)
    if found is None:
        found = state.job_work = Work(workspace_of(request))
    return found
