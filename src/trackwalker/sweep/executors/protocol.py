"""What the engine needs of whatever runs its jobs: Slurm, this machine, or (in tests) a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trackwalker.sweep.model import Result, Trial

# `unknown`: nobody answers, so nothing follows from it. `stuck`: it cannot start, its nodes are out of service.
State = Literal["waiting", "running", "ended", "stuck", "unknown"]


@dataclass(frozen=True)
class Look:
    """How a job stands at one look."""

    state: State
    says: str = ""  # one phrase for people
    hang: str = ""  # a running job that no longer moves: how that was seen
    phase: str = ""  # of that hang: init, compile, first-step, train, checkpoint
    step: int | None = None  # the last one that was completed
    hosts: tuple[str, ...] = ()  # of a job that is stuck: the nodes it waits for in vain


class Executor(Protocol):
    """Runs trials as jobs. A tag is unique to one attempt of one trial and part of its job's name."""

    at_once: int | None  # so many jobs at a time; None: as many as have nodes of their own

    def now(self) -> float:
        """The time in seconds since 1970; a simulated cluster has its own."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait until it is worth looking again."""
        ...

    def check(self, trials: list[Trial]) -> list[str]:
        """Everything that is wrong with these trials, one line each, before anything is submitted."""
        ...

    def describe(self, trial: Trial, tag: str) -> dict[str, Any]:
        """What exactly would run, for --dry-run; secrets starred."""
        ...

    def submit(self, trial: Trial, tag: str) -> str:
        """Start it and return its job id.

        UsageError: refused, nothing runs. MaybeQueuedError: it may run, look for its tag. UnreachableError: nobody
        answered and nothing was asked.
        """
        ...

    def find(self, tag: str) -> str | None:
        """The job that carries the tag, None when there surely is none; UnreachableError when nobody can say."""
        ...

    def settle_s(self, host: str) -> float:
        """How long a tag must be absent before its job is asked for again; `host` is where it was submitted from."""
        ...

    def look(self, trial: Trial, job: str, tag: str) -> Look:
        """How the job stands now."""
        ...

    def cancel(self, trial: Trial, job: str, tag: str) -> None:
        """End a job of this sweep; one that does not carry the tag is refused."""
        ...

    def measure(self, trial: Trial, job: str) -> Result:
        """What came of a job that has ended; the engine adds attempt and time."""
        ...
