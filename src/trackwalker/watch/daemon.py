"""The watcher: one process for all jobs of a workspace. It reads, asks, remembers and tells; it changes no job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.job.slurm.states import JobState
from trackwalker.launch.job_state import Standing
from trackwalker.launch.ledger import note, of_end
from trackwalker.watch.asking import Asker, Background
from trackwalker.watch.casework import Casework
from trackwalker.watch.delivery import telling
from trackwalker.watch.detect.confirm import Second, is_hang, second_of
from trackwalker.watch.detect.rules import detect, told_apart
from trackwalker.watch.detect.verdicts import Diagnoses
from trackwalker.watch.incident import Condition, Incident
from trackwalker.watch.jobs import Jobs, Watched, was_over
from trackwalker.watch.memory import ForgetfulError, Memory
from trackwalker.watch.notify.message import Message
from trackwalker.watch.supervise.restarts import Restarts
from trackwalker.watch.supervise.resume_policy import ResumePolicy

TICK_S = 1.0
_DISCOVER_S = 20.0
_CONFIRM_EVERY_S = 15.0
_CLEAR_S = 60.0  # an alert or a condition without a sign of its own end must be away so long
_SURE_S = 10.0  # an end that nobody recorded is looked at twice
_ODD_S = 30.0  # until a job whose files could not be understood is looked at again
_GUESSED = frozenset({"lost", "forgotten", "gone"})
_SILENCE = frozenset({"hang", "data-stall"})

Put = Callable[[Message], object]
Confirm = Callable[[Job], Second]


class Daemon:
    """Looks at every job in turn; `look` is one pass and never waits for anybody."""

    def __init__(
        self,
        jobs: Jobs,
        memory: Memory,
        put: Put,
        asker: Asker,
        background: Background,
        diagnoses: Diagnoses,
        confirm: Confirm = second_of,
        policy: ResumePolicy | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.jobs, self.memory = jobs, memory
        self.watched: dict[str, Watched] = {}
        self._asker, self._background, self._confirm = asker, background, confirm
        self._casework = Casework(memory, put, diagnoses)
        self._put = put
        self._restarts = Restarts(memory, background, put, policy)
        self._warn, self._trouble = warn, dict[str, str]()  # jobs that could not be looked at, and why
        self._discover_at = 0.0
        self._asked: dict[str, float] = {}  # job -> when a second signal was asked for
        self._second: dict[str, tuple[float, Second]] = {}
        self._away: dict[str, float] = {}  # incident -> since when its condition is not seen
        self._old: set[str] = set()  # jobs that were over before anybody watched: nothing is told of them
        memory.repeat(put)

    def look(self, now: float) -> None:
        """One pass over everything."""
        if now >= self._discover_at:
            self._discover_at = now + _DISCOVER_S
            self._discover(now)
        self._asker.begin(self.watched.values(), now)
        self._revive(self._asker.take(self.watched, now))
        for (_, job), answer in self._background.done("confirm"):
            if isinstance(answer, Second):
                self._second[job] = (now, answer)
        for watched in list(self.watched.values()):
            self._attend(watched, now)
        self._casework.step(now)
        self._restarts.step(now)
        if self._old and self._background.idle:
            count = f"{len(self._old)} jobs were" if len(self._old) > 1 else "one job was"
            self._warn(f"{count} over before this watch began: not reported, see 'trackwalker jobs'")
            self._old.clear()

    @property
    def busy(self) -> bool:
        """Whether something is under way that will be told."""
        return not self._background.idle or self._casework.busy

    def run(self, stopped: Callable[[float], bool], clock: Callable[[], float] = time.time) -> None:
        """Look again and again; `stopped` waits for so many seconds and says whether to end."""
        while True:
            began = clock()
            self.look(began)
            if self.jobs.named and not self.watched and not self.busy:
                return  # all of them are over, and everything is told
            if stopped(max(0.05, TICK_S - (clock() - began))):
                return

    def close(self) -> None:
        """End what runs beside the loop."""
        self._casework.close()
        self._background.close()
        self._asker.close()
        self.memory.close()

    def _attend(self, watched: Watched, now: float) -> None:
        try:
            if now >= watched.look_at:
                watched.read(now)
                self._judge(watched, now)
            self._follow(watched, now)
        except ForgetfulError:
            raise
        except Exception as e:  # one job's odd files must not blind us to all others
            watched.look_at = now + _ODD_S
            self._in_trouble(watched.job.id, f"{type(e).__name__}: {e}")

    def _in_trouble(self, job: str, why: str) -> None:
        if self._trouble.get(job) != why:
            self._trouble[job] = why
            self._warn(f"job {job} cannot be watched: {why}")

    def _discover(self, now: float) -> None:
        try:
            found = self.jobs.find(now)
        except OSError:
            return  # its file system is away: the jobs we know are looked at all the same
        for job in found:
            known = self.watched.get(job.id)
            if known is not None:
                if (known.job.log, known.job.dir) != (job.log, job.dir):  # it has begun to write, or was renamed
                    self._watch(job, known.standing)
                continue
            if self.memory.jobs.get(job.id, {}).get("ended"):
                continue
            if job.id not in self.memory.jobs and was_over(job, self.memory.since, now):
                self._pass_over(job.id)
                self._asker.curious = True  # if it is in the queue after all
                continue
            self._watch(job)

    def _pass_over(self, job: str) -> None:
        self.memory.see(job, ended=True, stale=True)
        self._old.add(job)

    def _watch(self, job: Job, seen: Standing | None = None) -> None:
        path = job.dir or job.log
        try:
            self.watched[job.id] = Watched(job)
            self.watched[job.id].standing = seen
        except TrackwalkerError as e:
            self._in_trouble(job.id, str(e))
            return
        self.memory.see(job.id, path=str(path) if path else "", name=job.name, ended=False, stale=False)

    def _revive(self, queue: list[JobState]) -> None:
        """A job that was over and waits or runs again: somebody requeued it."""
        for state in queue:
            known = self.memory.jobs.get(state.id, {})
            if not known.get("ended") or state.ended or state.state == "unknown":
                continue
            if known.get("stale") or state.restarts > int(known.get("restarts", 0)):
                job = next((j for j in self.jobs.find(0.0) if j.id == state.id), None)
                if job is not None:
                    self._watch(job)

    def _judge(self, watched: Watched, now: float) -> None:
        """Compare what is seen with what is known, and open, keep or close incidents."""
        job = watched.job.id
        open_now = {i.kind: i for i in self.memory.open_of(job)}
        seen = detect(watched.signs, now, open_now) if self._runs(watched) else []
        held = watched.standing is not None and watched.standing.stuck
        if held and watched.standing is not None:
            seen.append(telling.waiting(watched.standing, now))
        present: set[str] = set()
        for condition in seen:
            if condition.once and condition.since < self.memory.since:
                continue  # it happened before anybody watched
            known = self.memory.known(job, condition)
            if known is not None:
                present.add(known.id)
            elif condition.kind not in _SILENCE or self._is_sure(watched, condition, now):
                present.add(self._open(watched, self._with_second(watched, condition), now).id)
        for incident in self.memory.open_of(job):
            if incident.kind != "ended" and not incident.once:
                self._clear(watched, incident, incident.id in present, now)

    def _runs(self, watched: Watched) -> bool:
        """Whether silence means anything: a job that waits, ends or is unknown to its scheduler has a reason for it."""
        seen = watched.standing
        if watched.ended_at is not None:
            return False
        if seen is None:  # not asked yet, or its scheduler does not answer: its own records speak
            return bool(watched.signs.course.ranks)
        return not seen.ended and seen.state in ("running", "unknown")

    def _is_sure(self, watched: Watched, condition: Condition, now: float) -> bool:
        job = watched.job.id
        if condition.kind == "data-stall":
            return True  # the trainer itself says that its batch is overdue: that is the second signal
        if now - self._asked.get(job, -_CONFIRM_EVERY_S) >= _CONFIRM_EVERY_S:
            self._asked[job] = now
            self._background.start(("confirm", job), lambda: self._confirm(watched.job))
            for (_, one), answer in self._background.done("confirm"):  # at once, where there are no threads
                if isinstance(answer, Second):
                    self._second[one] = (now, answer)
        at, second = self._second.get(job, (0.0, None))
        if second is None or at < now - condition.silent_s:  # none yet, or one about an earlier silence
            return False
        return is_hang(second, condition.silent_s, condition.limit_s)

    def _with_second(self, watched: Watched, condition: Condition) -> Condition:
        found = self._second.pop(watched.job.id, None)
        self._asked.pop(watched.job.id, None)
        if condition.kind not in _SILENCE or found is None:
            return condition
        second = found[1]
        course = watched.signs.course
        ranks = second.ranks or tuple(r for r in course.ranks if course.host(r) in second.hosts)
        facts = condition.facts | {"second signal": second.says}
        if ranks:
            facts["points at"] = ", ".join(f"rank {r} ({course.host(r)})" for r in ranks[:8])
        return replace(condition, facts=facts, ranks=ranks or condition.ranks)

    def _open(self, watched: Watched, condition: Condition, now: float, thread: str = "") -> Incident:
        incident = self.memory.open(watched.job.id, condition, now, thread)
        self._casework.begin(incident)
        return incident

    def _clear(self, watched: Watched, incident: Incident, present: bool, now: float) -> None:
        if present or not self._runs(watched):
            self._away.pop(incident.id, None)
            return
        since = self._away.setdefault(incident.id, now)
        own_end = incident.kind in ("hang", "data-stall", "slow", "data-slow", "loss", "held", "checkpoint")
        if own_end or now - since >= _CLEAR_S:
            del self._away[incident.id]
            self._resolve(incident, _WELL.get(incident.kind, "it is over"), now)

    def _resolve(self, incident: Incident, why: str, now: float) -> None:
        name = self.memory.jobs.get(incident.job, {}).get("name", "")
        if not incident.told:  # it was over before it was told: told all the same, a hang that ends is news
            self._casework.tell(incident, now)
        message = telling.resolved(incident, name, why, now)
        self.memory.say(message, self._put, now, id=incident.id, resolved=now, updated=now)

    def _follow(self, watched: Watched, now: float) -> None:
        """What the scheduler says: queued again, over."""
        seen = watched.standing
        if seen is None:
            if watched.log_ended and not watched.own:  # an upstream job whose scheduler is not to be had
                self._end(watched, Standing("ended", True, meaning="is over: its log has the launcher's summary"), now)
            return
        known = self.memory.jobs.get(watched.job.id, {})
        if seen.restarts > int(known.get("restarts", 0)):
            if "state" in known:  # not at first sight: what came before is not ours to tell
                condition = telling.requeued(seen, now)
                if self.memory.known(watched.job.id, condition) is None:
                    self._open(watched, condition, now)
            self.memory.see(watched.job.id, restarts=seen.restarts)
        over = seen.ended and not self._is_guess(watched, seen, now)
        if over and "state" not in known and _ended_before(watched, seen, self.memory.since):
            del self.watched[watched.job.id]
            self._pass_over(watched.job.id)
        elif over:
            self._end(watched, seen, now)
        elif not seen.ended:
            self.memory.see(watched.job.id, state=seen.state)

    def _is_guess(self, watched: Watched, seen: Standing, now: float) -> bool:
        if seen.state not in _GUESSED:
            return False
        watched.lost_since = watched.lost_since or now
        watched.ask_at = min(watched.ask_at, now + _SURE_S / 2)
        return now - watched.lost_since < _SURE_S

    def _end(self, watched: Watched, seen: Standing, now: float) -> None:
        watched.read(now)  # its last words
        self._judge_last(watched, now)
        job, begun = watched.job.id, watched.signs.course.begun
        events = [event for event in watched.signs.events if float(event["t"]) >= begun]
        seen = told_apart(seen, events, watched.job.log)
        attempt = max(seen.restarts, watched.attempt)
        with contextlib.suppress(OSError):  # a ledger that cannot be written costs nothing but its lines
            note(self.jobs.workspace, of_end(job, attempt, seen.state, seen.hosts, watched.ended_at or now))
        condition = telling.ending(seen, watched.ended_at or now, attempt)
        failures = [i for i in self.memory.of(job) if i.kind == "failure" and i.since >= begun]
        thread = failures[-1].thread if failures else ""
        for incident in self.memory.open_of(job):
            if not incident.once:
                self._resolve(incident, f"over: the job {seen.meaning}", now)
        if self.memory.known(job, condition) is None:
            self._open(watched, condition, now, thread)
        ended = {"state": seen.state, "ended": True, "restarts": seen.restarts}
        self.memory.see(job, **ended, supervise=self._restarts.mark)
        del self.watched[job]
        for left in (self._asked, self._second):
            left.pop(job, None)

    def _judge_last(self, watched: Watched, now: float) -> None:
        """What a job wrote in its last seconds: a failed rank, a loss that ended it. Its silence is no news now."""
        for condition in detect(watched.signs, now, {}):
            tells = condition.once or condition.kind == "loss"
            if tells and condition.since >= self.memory.since and self.memory.known(watched.job.id, condition) is None:
                self._open(watched, condition, now)

    def report(self) -> list[dict[str, Any]]:
        """Every watched job with its open incidents, for --once; those with one first."""
        out = []
        for job, watched in sorted(self.watched.items(), key=lambda each: (not self.memory.open_of(each[0]), each[0])):
            seen, course = watched.standing, watched.signs.course
            out.append(
                {
                    "job": job,
                    "name": watched.job.name,
                    "state": seen.state if seen else "unknown",
                    "step": course.last_step,
                    "step_limit_s": round(course.step_limit(), 3),
                    "incidents": [asdict(i) for i in self.memory.open_of(job)],
                }
            )
        return out


def _ended_before(watched: Watched, seen: Standing, since: float) -> bool:
    """Whether a job that is looked at for the first time was over before anybody watched."""
    if seen.end is not None:
        return seen.end < since
    written = []  # whoever ended it wrote somewhere
    for source in (watched.job.log, watched.job.events, watched.job.run_json):
        with contextlib.suppress(OSError):
            written += [source.stat().st_mtime] if source is not None else []
    return bool(written) and max(written) < since


_WELL = {
    "hang": "steps are completed again",
    "data-stall": "batches come again",
    "slow": "steps are as fast as before",
    "data-slow": "steps are as fast as before",
    "loss": "the loss is a number near its level again",
    "held": "it is no longer held",
    "checkpoint": "checkpoints are written again",
}
