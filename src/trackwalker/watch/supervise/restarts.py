"""What the owner's policy makes of jobs that ended: decided and done beside the loop, remembered, told."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trackwalker.errors import TrackwalkerError
from trackwalker.launch.job_state import find_job, standing
from trackwalker.launch.slurm.client import Slurm
from trackwalker.watch.asking import Background
from trackwalker.watch.memory import Memory
from trackwalker.watch.notify.message import Message
from trackwalker.watch.supervise.resume_policy import ResumePolicy

PENDING, DONE = "pending", "done"
_AGAIN_S = 15.0


@dataclass(frozen=True)
class Outcome:
    """What was decided about one job, in a sentence; empty where the policy has nothing to say of it."""

    says: str
    resumed: bool = False
    failed: bool = False


class Restarts:
    """Every ended job is put to the policy once; a crash in between puts it again, and finds what was done."""

    def __init__(
        self, memory: Memory, background: Background, put: Callable[[Message], object], policy: ResumePolicy | None
    ) -> None:
        self._memory, self._background, self._put, self._policy = memory, background, put, policy
        self._not_before: dict[str, float] = {}  # jobs whose scheduler did not answer

    @property
    def mark(self) -> str:
        """What is written down with the end of a job, so that a crash does not forget to ask."""
        return PENDING if self._policy is not None else DONE

    def step(self, now: float) -> None:
        """Ask about jobs that ended, and tell what came of it."""
        if self._policy is None:
            return
        for job, known in self._memory.jobs.items():
            due = now >= self._not_before.get(job, 0.0)
            if known.get("supervise") == PENDING and known.get("ended") and known.get("path") and due:
                self._background.start(("supervise", job), partial(self._decide, known["path"]))
        for (_, job), answer in self._background.done("supervise"):
            if answer is None:
                self._not_before[job] = now + _AGAIN_S
                continue
            outcome = answer if isinstance(answer, Outcome) else Outcome(f"job {job}: {answer}", failed=True)
            if outcome.says:
                self._tell(job, outcome, now)
            self._memory.see(job, supervise=DONE)

    def _decide(self, path: str) -> Outcome | None:
        """What came of it; None where nobody can be asked now."""
        from trackwalker.watch.supervise.attempts import (  # reading logs is heavy, and most ends need none
            carry_out,
            consider,
        )

        job = find_job(path, Path())
        seen = standing(job)
        if seen.state == "unknown":
            return None
        if not seen.ended:
            return Outcome("")  # somebody was faster, perhaps we were, before a crash
        slurm = Slurm()
        decision = consider(job, seen, self._policy, slurm)
        if decision.weighed is None:
            return Outcome("")  # not a run that the policy is for
        try:
            begun = carry_out(decision, seen, slurm)
        except TrackwalkerError as e:
            return Outcome(str(e), failed=True)
        return Outcome(decision.sentence(), begun is not None)

    def _tell(self, job: str, outcome: Outcome, now: float) -> None:
        attempt = self._memory.jobs.get(job, {}).get("restarts", 0)
        ended = [i for i in self._memory.of(job) if i.kind == "ended"]
        key = f"{job}-resume-{attempt}"
        message = Message(
            key=key,
            thread=ended[-1].thread if ended else key,
            severity="critical" if outcome.failed else "warning" if not outcome.resumed else "info",
            kind="resume",
            title=outcome.says,
            time=now or time.time(),
            job=job,
        )
        self._memory.say(message, self._put, now)
