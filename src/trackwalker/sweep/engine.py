"""The engine of every sweep: asks the strategy, submits what fits, watches, measures, applies the failure policy.

It holds nothing in memory that is not in the journal. Killed at any moment and started again, it finds its jobs by
their tags and goes on; a scheduler that does not answer is waited for, and nothing is submitted twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from trackwalker.errors import MaybeQueuedError, MissingToolError, TrackwalkerError, UnreachableError, UsageError
from trackwalker.launch.slurm.client import SlurmUnreachable
from trackwalker.sweep.budget import budget_of, fits, minutes_left
from trackwalker.sweep.executors.protocol import Executor, Look
from trackwalker.sweep.model import Result, Strategy, Trial
from trackwalker.sweep.plan import Plan
from trackwalker.sweep.policy import Decision, all_alike, decide, load_policy
from trackwalker.sweep.progress import Teller
from trackwalker.sweep.state import STOPPED, Book, Run

End = Literal["finished", "stopped", "cancelled"]

_SOONEST_S, _LATEST_S = 0.3, 10.0  # between two looks: soon for short jobs, gently for long ones
_SEEKING_S = 2.0
_SILENT = (UnreachableError, SlurmUnreachable)
_BY_ORDER = "cancelled by order"


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended; `why` where that was before its question was answered."""

    end: End
    why: str = ""


class Engine:
    """One sweep while it runs."""

    def __init__(
        self,
        plan: Plan,
        strategy: Strategy,
        executor: Executor,
        book: Book,
        teller: Teller,
        landed: Callable[[], None] = lambda: None,  # after every result
    ) -> None:
        self._plan, self._strategy, self._executor, self._book, self._tell = plan, strategy, executor, book, teller
        self._landed, self._policy = landed, load_policy()
        self._state = book.state
        self._absent: dict[str, float] = {}  # tag -> since when a submission without an answer is nowhere to be found
        self._told: set[str] = set()  # tags of jobs that were told to end
        self._over_budget = False
        self._stopping = ""

    def run(self) -> Outcome:
        """Run to the end, or until somebody or something stops it."""
        pause = _SOONEST_S
        while True:
            moved = self._attend()
            why = self._reason_to_stop()
            if why:
                return self._stop(why)
            wanted = self._wanted()
            moved |= self._submit(wanted)
            if not self._state.open_runs and (self._over_budget or not self._wanted()):
                break
            self._tell.state(self._state, len(wanted), self._left(wanted))
            pause = self._pause(moved, pause)
            self._executor.sleep(pause)
        if self._over_budget:
            budget = budget_of(self._plan, self._state)
            return self._stop(f"the budget of {budget:g} node-hours does not allow another job")
        self._book.write("end", self._executor.now(), stop="")
        self._book.forget_order()
        return Outcome("finished")

    def cancel(self) -> Outcome:
        """End every job of the sweep that may still run, and the sweep."""
        return self._stop(_BY_ORDER)

    def _reason_to_stop(self) -> str:
        if self._book.told_to_cancel:
            return _BY_ORDER
        done = self._state.done
        why = self._state.must_stop or all_alike(self._policy, self._plan.kind, done)
        over = not self._state.open_runs and not self._wanted()  # then there is nothing to stop
        return why or ("" if over else self._strategy.stop(done))

    def _wanted(self) -> list[Trial]:
        """Trials that the strategy asks for and that are neither done nor under way."""
        known = self._state.done.keys() | {run.trial.key for run in self._state.open_runs}
        wanted = {trial.key: trial for trial in self._strategy.next_trials(self._state.done)}
        return [trial for key, trial in wanted.items() if key not in known]

    def _pause(self, moved: bool, before: float) -> float:
        lost = any(not run.job for run in self._state.open_runs)  # what is looked for holds up all others
        return _SOONEST_S if moved else min(1.4 * before, _SEEKING_S if lost else _LATEST_S)

    def _left(self, wanted: list[Trial]) -> float | None:
        at_once = self._executor.at_once or max(len(self._state.open_runs), 1)
        return minutes_left(self._state, len(wanted), at_once)

    # Jobs that are under way

    def _attend(self) -> bool:
        """Look at every open attempt once; whether anything changed."""
        moved = False
        for run in self._state.open_runs:
            moved |= self._follow(run) if run.job else self._seek(run)
        return moved

    def _seek(self, run: Run) -> bool:
        """An intent without a job: killed between the two, or an answer was lost. It is looked for, never guessed."""
        try:
            job = self._executor.find(run.tag)
        except _SILENT as e:
            self._tell.silent(str(e))
            return False
        self._tell.answers()
        now = self._executor.now()
        if job is not None:
            self._book.write("submitted", now, tag=run.tag, job=job)
            self._tell.line(f"{run.trial.key}: job {job} is there already, adopted")
            return True
        # It may still be on its way: the controller was busy, or another machine's sbatch is not through yet.
        if now - self._absent.setdefault(run.tag, now) < self._executor.settle_s(run.host):
            return False
        self._book.write("void", now, tag=run.tag, why="it was never queued")
        return True

    def _follow(self, run: Run) -> bool:
        look = self._executor.look(run.trial, run.job, run.tag)
        if look.state == "unknown":
            self._tell.silent(look.says)
            return False
        self._tell.answers()
        if look.state == "ended":
            self._judge(run)
            return True
        if look.state == "running" and run.started is None:
            self._book.write("started", self._executor.now(), tag=run.tag)
            return True
        if run.stalled:  # we were killed before we could end it
            return run.tag not in self._told and self._cancel(run)
        if look.state == "stuck":
            self._end_job(run, replace(look, hang=f"it cannot start: {look.says}", phase="start"))
        elif look.hang:
            self._end_job(run, look)
        return bool(run.stalled)

    def _end_job(self, run: Run, look: Look) -> None:
        """A job of ours that no longer moves is ended; why is on disk first, or it would look like anybody's cancel."""
        said = {"phase": look.phase, "why": look.hang, "hosts": ",".join(look.hosts)}
        self._book.write("stalled", self._executor.now(), tag=run.tag, **said)
        self._tell.line(f"{run.trial.key}: ending job {run.job}, it does not move ({look.phase}): {look.hang}")
        self._cancel(run)

    def _cancel(self, run: Run) -> bool:
        try:
            self._executor.cancel(run.trial, run.job, run.tag)
        except _SILENT as e:
            self._tell.silent(str(e))
            return False
        except TrackwalkerError as e:  # it is over, or not ours any more: what it came to will tell
            self._tell.line(f"{run.trial.key}: {e}")
        self._told.add(run.tag)
        return True

    def _judge(self, run: Run) -> None:
        now = self._executor.now()
        result = self._executor.measure(run.trial, run.job)
        minutes = result.minutes or max(0.0, now - (run.started or run.submitted or now)) / 60.0
        result = replace(result, key=run.trial.key, job=run.job, attempt=run.attempt, minutes=minutes)
        if run.stalled and result.status != "ok":
            result = _as_hang(result, run)
        result = self._policy.of_hang(result)
        before = [each.result for each in self._state.tries(run.trial.key) if each.result is not None]
        decision, spares = self._decide(run, result, before)
        for node, spare in zip(decision.replace, spares, strict=False):
            self._book.write("replaced", now, node=node, by=spare, why=result.why)
            self._tell.line(f"{node} is left out of this sweep ({result.why}); {spare} takes its place")
        said = {"result": asdict(result), "again": decision.again, "stop": decision.stop}
        self._book.write("result", now, tag=run.tag, **said)
        left = None if self._stopping else self._left(self._wanted())
        self._tell.landed(self._state, run, result, decision.again, left)
        self._landed()

    def _decide(self, run: Run, result: Result, before: list[Result]) -> tuple[Decision, list[str]]:
        if self._stopping:  # what we ended ourselves says nothing about the trial: a resumed sweep runs it again
            return Decision(again=f"{STOPPED}: {self._stopping}" if result.status != "ok" else ""), []
        used = set(self._state.replaced.values())
        spares = [spare for spare in self._plan.setup.spares if spare not in used]
        nodes, replaced = run.trial.nodes, len(self._state.replaced)
        return decide(self._policy, self._plan.kind, result, before, nodes, len(spares), replaced), spares

    # New jobs

    def _submit(self, wanted: list[Trial]) -> bool:
        """Submit what fits now: no two trials on one node, never beyond the budget; whether anything was submitted."""
        moved = self._over_budget = False
        for trial in wanted:
            placed = self._placed(trial)
            if not self._is_free(placed):
                continue
            if not fits(budget_of(self._plan, self._state), self._state, placed):
                self._over_budget = True
                break
            if not self._start(placed):
                break
            moved = True
        return moved

    def _placed(self, trial: Trial) -> Trial:
        """The trial with spares in the place of nodes that failed."""
        return replace(trial, nodes=tuple(self._state.replaced.get(node) or node for node in trial.nodes))

    def _is_free(self, trial: Trial) -> bool:
        open_runs = self._state.open_runs
        if self._executor.at_once is not None and len(open_runs) >= self._executor.at_once:
            return False
        return all(set(trial.nodes).isdisjoint(run.trial.nodes) for run in open_runs)

    def _start(self, trial: Trial) -> bool:
        """Intent, then submission; False when nobody answers: then the next look decides."""
        now = self._executor.now()
        tag = f"{self._plan.id}.{len(self._state.runs) + 1}"
        attempt = len(self._state.tries(trial.key)) + 1
        self._book.intend(tag, trial, attempt, now)
        try:
            job = self._executor.submit(trial, tag)
        except MaybeQueuedError as e:
            self._tell.silent(str(e))
            return False
        except _SILENT as e:
            self._book.write("void", self._executor.now(), tag=tag, why="nobody answered")
            self._tell.silent(str(e))
            return False
        except (UsageError, MissingToolError) as e:
            self._refused(tag, trial, attempt, str(e))
            return True
        self._tell.answers()
        self._book.write("submitted", self._executor.now(), tag=tag, job=job)
        self._tell.submitted(trial, job, attempt)
        return True

    def _refused(self, tag: str, trial: Trial, attempt: int, why: str) -> None:
        result = Result(trial.key, "config-error", why=why, cause="refused", attempt=attempt)
        self._book.write("result", self._executor.now(), tag=tag, result=asdict(result), again="", stop="")
        self._tell.landed(self._state, self._state.runs[tag], result, "", None)
        self._landed()

    # The end before the end

    def _stop(self, why: str) -> Outcome:
        """End our own jobs, measure what they left, and write down why."""
        self._tell.line(f"stopping: {why}")
        self._stopping = why
        pause = _SOONEST_S
        while self._state.open_runs:
            for run in self._state.open_runs:
                if run.job and run.tag not in self._told:
                    self._cancel(run)
            pause = self._pause(self._attend(), pause)
            if self._state.open_runs:
                self._executor.sleep(pause)
        self._book.write("end", self._executor.now(), stop=why)
        self._book.forget_order()
        return Outcome("cancelled" if why == _BY_ORDER else "stopped", why)


def _as_hang(result: Result, run: Run) -> Result:
    phase, why = run.stalled["phase"], run.stalled["why"]
    if phase == "start":  # a prolog that failed, a node that went down: not the trial's doing
        hosts = tuple(run.stalled["hosts"].split(","))
        return replace(result, status="node-fault", why=why, cause="out-of-service", phase="", hosts=hosts)
    return replace(result, status="hang", phase=phase, why=why, cause=result.cause or "hang")
