"""A cluster that is only simulated: the real engine or a strategy alone against a world with a known truth.

Strategies are pure, so a thousand sweeps take seconds. `play` is for strategies; `SimulatedCluster` is an executor for
the whole engine, with queues, time, lost answers and jobs that hang.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trackwalker.errors import MaybeQueuedError, UnreachableError
from trackwalker.sweep.executors.protocol import Look
from trackwalker.sweep.model import Conclusion, Done, Result, Strategy, Trial

World = Callable[[Trial, int], Result]  # the trial and how often it ran before -> what comes of it

_ENDLESS = 100_000


@dataclass(frozen=True)
class Played:
    """A sweep that was played to its end."""

    done: Done
    jobs: list[Trial]  # in the order they ran
    conclusion: Conclusion
    stopped: str = ""


def play(strategy: Strategy, world: World, seed: int = 0, at_once: int | None = None) -> Played:
    """Run a strategy to its end; results arrive in an order that the seed chooses, as on a real cluster."""
    order = random.Random(seed)
    done: dict[str, Result] = {}
    jobs: list[Trial] = []
    while len(jobs) < _ENDLESS:
        if why := strategy.stop(done):
            return Played(done, jobs, strategy.conclude(done), why)
        wanted = [trial for trial in strategy.next_trials(done) if trial.key not in done]
        if not wanted:
            return Played(done, jobs, strategy.conclude(done))
        wave = disjoint(wanted, at_once)
        order.shuffle(wave)
        for trial in wave:
            jobs.append(trial)
            done[trial.key] = replace(world(trial, 0), key=trial.key)
    raise AssertionError(f"{strategy.kind} wants job after job and never ends")


def disjoint(trials: list[Trial], at_once: int | None = None) -> list[Trial]:
    """Those of the trials that can run at the same time: no two share a node."""
    taken: set[str] = set()
    wave: list[Trial] = []
    for trial in trials:
        if taken.isdisjoint(trial.nodes) and (at_once is None or len(wave) < at_once):
            taken |= set(trial.nodes)
            wave.append(trial)
    return wave


@dataclass
class _Job:
    trial: Trial
    tag: str
    began: float
    ends: float
    result: Result
    cancelled: bool = False


@dataclass
class SimulatedCluster:
    """An executor whose jobs are only numbers; `down` are spans of time in which nobody answers."""

    world: World
    at_once: int | None = None
    down: list[tuple[float, float]] = field(default_factory=list)
    loses_answer: set[int] = field(default_factory=set)  # submissions (from 1) that arrive, but whose answer does not
    jobs: dict[str, _Job] = field(default_factory=dict)
    time: float = 1e9
    submissions: int = 0

    def now(self) -> float:
        """The simulated time."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let time pass, to the next end of a job at most."""
        self.time += seconds

    def check(self, trials: list[Trial]) -> list[str]:
        """Nothing is wrong with simulated trials."""
        return []

    def describe(self, trial: Trial, tag: str) -> dict[str, Any]:
        """The trial itself."""
        return asdict(trial)

    def submit(self, trial: Trial, tag: str) -> str:
        """Start a job at once; its nodes must be free."""
        self._answer()
        self.submissions += 1
        busy = {node for job in self.jobs.values() if job.ends > self.time for node in job.trial.nodes}
        if shared := busy & set(trial.nodes):
            raise AssertionError(f"two trials share {sorted(shared)}")
        before = sum(job.trial.key == trial.key for job in self.jobs.values())
        result = self.world(trial, before)
        name = str(1000 + self.submissions)
        ends = float("inf") if result.status == "hang" else self.time + 60.0 * (result.minutes or trial.minutes)
        self.jobs[name] = _Job(trial, tag, self.time, ends, result)
        if self.submissions in self.loses_answer:
            raise MaybeQueuedError("the controller did not answer in time")
        return name

    def find(self, tag: str) -> str | None:
        """The job with that tag."""
        self._answer()
        return next((name for name, job in self.jobs.items() if job.tag == tag), None)

    def settle_s(self, host: str) -> float:
        """As long as a busy controller may take."""
        return 20.0

    def look(self, trial: Trial, job: str, tag: str) -> Look:
        """How it stands."""
        found = self.jobs[job]
        if self._is_down():
            return Look("unknown", "nobody answers")
        if found.ends <= self.time:
            return Look("ended")
        if found.result.status == "hang" and self.time - found.began > 60.0:
            return Look("running", hang=found.result.why or "no step", phase=found.result.phase)
        return Look("running")

    def cancel(self, trial: Trial, job: str, tag: str) -> None:
        """End it."""
        self._answer()
        found = self.jobs[job]
        if found.tag != tag:
            raise AssertionError(f"job {job} is not ours")
        if found.ends > self.time:
            found.ends, found.cancelled = self.time, True

    def measure(self, trial: Trial, job: str) -> Result:
        """What the world says."""
        found = self.jobs[job]
        status = "cancelled" if found.cancelled else found.result.status
        minutes = (found.ends - found.began) / 60.0
        return replace(found.result, key=trial.key, job=job, status=status, minutes=minutes)

    def _is_down(self) -> bool:
        return any(begin <= self.time < end for begin, end in self.down)

    def _answer(self) -> None:
        if self._is_down():
            raise UnreachableError("the controller does not answer")
