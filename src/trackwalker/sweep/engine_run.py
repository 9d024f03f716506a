"""A sweep from its plan to its end: the parts put together, for a new one and for one that goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.sweep import report as reports
from trackwalker.sweep.engine import Engine, Outcome
from trackwalker.sweep.executors import Executor
from trackwalker.sweep.executors_local import LocalExecutor
from trackwalker.sweep.executors_slurm import SlurmExecutor
from trackwalker.sweep.model import Strategy, Trial
from trackwalker.sweep.plan import Plan, load_plan
from trackwalker.sweep.progress import Teller
from trackwalker.sweep.state import Book, State, load_state, order_cancel, running
from trackwalker.sweep.strategies import build

_MOST_PROBLEMS = 6

Telling = Callable[[int], Teller]  # by the most jobs there can be


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
