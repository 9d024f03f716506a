"""Where a plan is started: one file per scheduler, and the table of those that `submit --on` knows.

A new scheduler is a file with `SCHEDULER`, an object that answers as `Scheduler` says, and a row of `SCHEDULERS`. It
queues `agent.pyz node order.json` of the submission's folder, once on each node, with JOB_ID and JOB_COMPLETION_INDEX
(which node, from 0) in the environment; the agents do the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from trackwalker.job.layout import Job
    from trackwalker.launch.job_state import Standing
    from trackwalker.launch.submission import Submission

SCHEDULERS = {
    "slurm": "trackwalker.launch.schedulers.slurm",
    "k8s": "trackwalker.launch.schedulers.kubernetes",
}


class Wishes(Protocol):
    """What the words before `--` ask of a scheduler; more than this is its own business."""

    @property
    def nodes(self) -> int | None:
        """How many nodes; None: not said."""

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs of each; None: the model's."""


class Scheduler(Protocol):
    """All that `submit`, `plan`, `status`, `wait`, `watch` and `cancel` ask of a scheduler."""

    def wishes(self, words: Sequence[str], env: Mapping[str, str]) -> Wishes:
        """What the user's words ask for; UsageError for one that this scheduler does not have."""

    def shown(self, submission: Submission, wishes: Any) -> dict[str, Any]:
        """What it would be given, for `plan`; nothing is written."""

    def submit(self, submission: Submission, wishes: Any) -> str:
        """Write the folder, queue the job and return its id, a number; a refusal leaves nothing behind."""

    def state(self, job: Job) -> Standing | None:
        """How the job stands; None where the scheduler knows nothing of it, so that the job's own record counts."""

    def cancel(self, job: Job) -> None:
        """End the job; UsageError where that is refused."""


def scheduler_named(name: str) -> Scheduler | None:
    """The scheduler of that name in run.json; None for one that is not in the table, or has no such object."""
    module = import_module(SCHEDULERS[name]) if name in SCHEDULERS else None
    return cast("Scheduler | None", getattr(module, "SCHEDULER", None))
