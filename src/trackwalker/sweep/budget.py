"""What a sweep may cost and has cost, in node-hours; and how long it will still take."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from trackwalker.sweep.model import Strategy, Trial
from trackwalker.sweep.plan import Plan
from trackwalker.sweep.state import Run, State

_LEAST_MINUTES = 1.0 / 60.0


@dataclass(frozen=True)
class Cost:
    """The most a sweep can come to."""

    jobs: int
    node_hours: float

    def words(self) -> str:
        """For people."""
        jobs = "1 job" if self.jobs == 1 else f"{self.jobs} jobs"
        return f"at most {jobs}, {self.node_hours:.3g} node-hours (a repeated job comes on top)"


def at_most(strategy: Strategy, first: list[Trial]) -> Cost:
    """The most jobs, each as large as the largest of the first wave, unless the strategy knows better."""
    jobs = strategy.at_most()
    own = getattr(strategy, "at_most_node_hours", None)  # a kind whose jobs differ in size reckons itself
    largest = max((size(trial) for trial in first), default=0.0)
    return Cost(jobs, float(own()) if own is not None else jobs * largest)


def size(trial: Trial, minutes: float | None = None) -> float:
    """Node-hours of one job."""
    return max(len(trial.nodes), 1) * (trial.minutes if minutes is None else minutes) / 60.0


def spent(state: State, now: float) -> float:
    """Node-hours of the jobs that ended, and so far of those that have not; waiting in the queue costs nothing."""
    total = 0.0
    for run in state.runs.values():
        if run.result is not None:
            total += size(run.trial, run.result.minutes)
        elif run.open and run.started is not None:
            total += size(run.trial, max(0.0, now - run.started) / 60.0)
    return total


def budget_of(plan: Plan, state: State) -> float | None:
    """The node-hours it may cost: as planned, or as a later `resume` allowed."""
    return plan.budget if state.budget is None else state.budget


def fits(budget: float | None, state: State, trial: Trial) -> bool:
    """Whether a job may still be started: what runs is counted at its expected length."""
    if budget is None:
        return True
    usual = usual_minutes(state.runs.values())
    coming = [run.trial for run in state.open_runs] + [trial]
    expected = sum(size(each, usual or each.minutes) for each in coming)
    ended = sum(size(run.trial, run.result.minutes) for run in state.runs.values() if run.result is not None)
    return ended + expected <= budget + 1e-9


def usual_minutes(runs: Iterable[Run]) -> float | None:
    """How long the jobs of this sweep take; None before one has ended well."""
    known = [run.result.minutes for run in runs if run.result is not None and run.result.ok]
    return max(statistics.median(known), _LEAST_MINUTES) if known else None


def minutes_left(state: State, waiting: int, at_once: int) -> float | None:
    """How long what is known to come will take; None before a job has ended well."""
    usual = usual_minutes(state.runs.values())
    if usual is None:
        return None
    return usual * -(-(waiting + len(state.open_runs)) // max(at_once, 1))
