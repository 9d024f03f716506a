"""A sweep from its plan to its end: the parts put together, for a new one and for one that goes on."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trackwalker.errors import MissingToolError, TrackwalkerError, UnreachableError, UsageError
from trackwalker.job.slurm.states import JobState
from trackwalker.launch.code.provenance import Provenance, code_of
from trackwalker.launch.code.snapshot import Snapshot, frozen
from trackwalker.launch.job_state import standing
from trackwalker.launch.plan import starred
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers import slurm
from trackwalker.launch.slurm.client import NodeState, Slurm, SlurmUnreachable
from trackwalker.launch.slurm.options import parse_scheduler_words
from trackwalker.launch.submission import Submission, how_of, packages_of, plan_submission, runtime_of
from trackwalker.sweep import report as reports
from trackwalker.sweep.engine import Engine, Outcome
from trackwalker.sweep.executors.jobs import JobExecutor, processes_with, spec_of, words_of
from trackwalker.sweep.executors.local import LocalExecutor
from trackwalker.sweep.executors.protocol import Executor, Look
from trackwalker.sweep.model import Result, Strategy, Trial
from trackwalker.sweep.plan import Plan, Setup, load_plan
from trackwalker.sweep.progress import Teller
from trackwalker.sweep.state import Book, State, load_state, order_cancel, running
from trackwalker.sweep.strategies import build

_MOST_PROBLEMS = 6

Telling = Callable[[int], Teller]  # by the most jobs there can be


# Trials as jobs of a Slurm cluster, each pinned to its nodes.
_FRESH_S = 2.0  # one answer of the controller serves all jobs of a look
_NOT_THERE = "ReqNodeNotAvail"  # Slurm's word where a node of the list is down, drained or reserved
_UNFIT = ("down", "drain", "fail", "maint", "unknown", "inval", "not_responding", "power")


class SlurmExecutor(JobExecutor):
    """Jobs on the cluster that the environment names."""

    at_once: int | None = None

    def __init__(self, setup: Setup, client: Slurm | None = None) -> None:
        super().__init__(setup)
        self._slurm = client or Slurm()
        self._python = setup.python or sys.executable
        self._options = parse_scheduler_words(setup.words)
        self._code: dict[str, Provenance] = {}
        self._queue: dict[str, JobState] = {}
        self._asked = 0.0

    def check(self, trials: list[Trial]) -> list[str]:
        """Unknown or unfit nodes, a node named twice, and everything that `submit` would refuse."""
        problems: dict[str, None] = {}  # ordered, each once
        known = {node.name: node for node in self._slurm.nodes()}
        for trial in trials:
            if not trial.nodes:
                problems["the jobs of a sweep are pinned to nodes: give --nodelist"] = None
            for node, count in Counter(trial.nodes).items():
                if count > 1:
                    problems[f"{trial.key}: node {node} is named {count} times"] = None
                if node not in known:
                    problems[f"there is no node '{node}' in this cluster"] = None
                elif any(word in known[node].state for word in _UNFIT):
                    why = f" ({known[node].reason})" if known[node].reason else ""
                    problems[f"node {node} is {known[node].state}{why}: leave it out"] = None
            try:
                self._planned(trial, "check", None, None)
            except UsageError as e:
                problems[f"{trial.key}: {e}"] = None
        for node in self.setup.spares:
            if node not in known:
                problems[f"there is no node '{node}' in this cluster (--spares)"] = None
        return list(problems)

    def describe(self, trial: Trial, tag: str) -> dict[str, Any]:
        """The sbatch call and the trainer's command."""
        submission = self._planned(trial, tag, None, None)
        batch = slurm.plan_batch(submission, self._placed(trial), None, self._python)
        return {"sbatch": [starred(word) for word in batch.argv()], "command": submission.record.command}

    def submit(self, trial: Trial, tag: str) -> str:
        """Queue it on exactly its nodes."""
        try:
            with frozen(self._folder(trial), self.workspace) as code:
                submission = self._planned(trial, tag, code, self._provenance(trial))
                batch = slurm.plan_batch(submission, self._placed(trial), self._slurm, self._python)
                return slurm.submit(batch, self._slurm).id
        finally:
            self._asked = 0.0

    def find(self, tag: str) -> str | None:
        """By the job's directory, then in the queue; what ran has left one, what waits is in the other."""
        if any(processes_with(f"-{tag}")):
            raise UnreachableError(f"the submission of {tag} is still under way")
        if (written := self._written(tag)) is not None:
            return written
        self._refresh(0.0)
        own = [job.id for job in self._queue.values() if job.name.endswith(f"-{tag}")]
        return own[0] if own else self._written(tag)

    def look(self, trial: Trial, job: str, tag: str) -> Look:
        """How Slurm sees it; a running job is watched."""
        try:
            self._refresh(_FRESH_S)
        except (SlurmUnreachable, UnreachableError) as e:
            return Look("unknown", str(e))
        state = self._state(job)
        if state.state == "unknown":
            return Look("unknown", state.reason or state.meaning)
        if state.ended:
            return Look("ended", state.meaning)
        if state.state in ("pending", "launch-failed"):
            out = self._out_of_service(trial) if state.stuck or _NOT_THERE in state.reason else {}
            if out:
                said = ", ".join(f"{name} is {node.state}" for name, node in out.items())
                return Look("stuck", f"{state.meaning}; {said}", hosts=tuple(out))
            return Look("waiting", state.meaning)
        return self._moving(job)

    def cancel(self, trial: Trial, job: str, tag: str) -> None:
        """End it: Slurm must know it under the name that this sweep gave it."""
        state = self._slurm.state(job)
        if state.state == "unknown":
            raise UnreachableError(f"job {job} was not cancelled: {state.reason}")
        if state.ended:
            return
        if not state.name.endswith(f"-{tag}"):
            raise UsageError(f"Slurm's job {job} is '{state.name}', not one of this sweep: not cancelled")
        self._slurm.cancel(job, state.name, os.getuid())
        self._asked = 0.0

    def measure(self, trial: Trial, job: str) -> Result:
        """What came of it."""
        state = self._state(job)
        result = self._measured(trial, job, state.state, state.meaning)
        if state.state in ("node-fail", "boot-fail") and not result.hosts:  # the log rarely names who was lost
            with contextlib.suppress(TrackwalkerError):
                lost = tuple(self._out_of_service(trial))
                return replace(result, status="node-fault", hosts=lost) if lost else result
        return result

    def _state(self, job: str) -> JobState:
        known = self._queue.get(job)
        if known is not None:
            return known
        state = self._slurm.state(job)
        if state.state != "forgotten":
            return state
        found = self._job(job)
        seen = standing(found, self._slurm) if found is not None else None
        if seen is not None and seen.state in ("completed", "failed", "cancelled"):  # by its own record
            return JobState(job, seen.state, reason=seen.reason, exit_code=seen.exit)  # type: ignore[arg-type]
        return state

    def _out_of_service(self, trial: Trial) -> dict[str, NodeState]:
        """The trial's nodes that take no job now."""
        nodes = {node.name: node for node in self._slurm.nodes() if node.name in trial.nodes}
        return {name: node for name, node in nodes.items() if any(word in node.state for word in _UNFIT)}

    def _refresh(self, age_s: float) -> None:
        if time.monotonic() - self._asked < age_s and self._asked:
            return
        try:
            self._queue = {job.id: job for job in self._slurm.queue()}
        except (UsageError, MissingToolError, ValueError) as e:
            raise UnreachableError(f"Slurm's queue cannot be read: {e}") from e
        self._asked = time.monotonic()

    def _planned(self, trial: Trial, tag: str, code: Snapshot | None, source: Provenance | None) -> Submission:
        setup, words, spec = self.setup, words_of(trial), spec_of(trial, tag)
        asked = Asked(
            spec, words, max(len(trial.nodes), 1), self._options.gpus_per_node, setup.gpu, setup.fabric, setup.image,
            setup.registry, setup.stage_timeouts, self.workspace,
        )  # fmt: skip
        argv = ["submit", spec, f"--nodelist={','.join(trial.nodes)}", *setup.words, "--", *words]
        beside = {"python": self._python, "provenance": source, "flags": setup.flags}
        how = how_of(setup, "slurm", argv, runtime_of(setup), code, **beside)
        return plan_submission(asked, how)

    def _placed(self, trial: Trial) -> Any:
        return replace(self._options, nodes=len(trial.nodes), nodelist=",".join(trial.nodes))

    def _folder(self, trial: Trial) -> Path | None:
        code = trial.code or self.setup.code
        if code and not Path(code).is_dir():
            raise UsageError(f"{trial.key}: its code {code} is not a folder here")
        return Path(code) if code else None

    def _provenance(self, trial: Trial) -> Provenance:
        folder = self._folder(trial) or Path.cwd()
        if str(folder) not in self._code:  # asking git and the packages takes a second, and the answer stays
            packages = packages_of(runtime_of(self.setup), self._python)
            self._code[str(folder)] = code_of(folder, self.workspace, packages)
        return self._code[str(folder)]


def executor_of(plan: Plan) -> Executor:
    """What runs the jobs of a plan."""
    return SlurmExecutor(plan.setup) if plan.setup.on == "slurm" else LocalExecutor(plan.setup, plan.folder)


def first_wave(strategy: Strategy, executor: Executor) -> list[Trial]:
    """The trials it begins with; everything that is wrong with them is one error, before anything is submitted."""
    wave = strategy.next_trials({})
    if not wave:
        raise UsageError(f"there is nothing to run: {strategy.conclude({}).headline}")
    problems = executor.check(wave)
    if problems:
        more = f"; and {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
        raise UsageError("; ".join(problems[:_MOST_PROBLEMS]) + more)
    return wave


def carry_out(plan: Plan, telling: Telling, executor: Executor | None = None, budget: float | None = None) -> Outcome:
    """Run a sweep from where it is to its end; one that was stopped goes on, with another budget if given."""
    strategy = build(plan.kind, plan.request)
    with Book(plan.folder) as book:
        teller = telling(strategy.at_most())
        runner = executor or executor_of(plan)
        if book.state.ended is not None:
            book.write("resumed", runner.now())
        if budget is not None:
            book.write("budget", runner.now(), node_hours=budget)
        book.forget_order()
        engine = Engine(plan, strategy, runner, book, teller, lambda: _save(plan, book.state, strategy, teller))
        try:
            return engine.run()
        finally:
            teller.close()
            _save(plan, book.state, strategy, teller)


def cancel(plan: Plan, telling: Telling) -> Outcome | None:
    """End a sweep and its jobs; None where the process that runs it was told to."""
    if running(plan.folder):
        order_cancel(plan.folder)
        return None
    strategy = build(plan.kind, plan.request)
    with Book(plan.folder) as book:
        if book.state.ended is not None and not book.state.open_runs:
            raise UsageError(f"sweep {plan.id} is over: nothing to cancel")
        teller = telling(strategy.at_most())
        try:
            return Engine(plan, strategy, executor_of(plan), book, teller).cancel()
        finally:
            _save(plan, book.state, strategy, teller)


def opened(folder: Path) -> tuple[Plan, State, Strategy, str]:
    """A sweep to look at: its plan, its state, its strategy, and who runs it."""
    plan = load_plan(folder)
    return plan, load_state(folder), build(plan.kind, plan.request), running(folder)


def _save(plan: Plan, state: State, strategy: Strategy, teller: Teller) -> None:
    try:
        reports.save(plan, state, strategy, running(plan.folder) if state.ended is None else "")
    except Exception as e:  # a full disk, a defect of the report: the jobs and their results are worth more
        teller.line(f"the report was not written: {type(e).__name__}: {e}")
