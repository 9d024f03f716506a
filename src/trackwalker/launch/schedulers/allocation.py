"""A run on the nodes of the Slurm allocation around this shell (`salloc`, a batch script), one agent on each by srun.

The run has an id of its own: an allocation may see several, one after the other. Its end is its own too, and leaves the
allocation as it was.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from trackwalker.errors import MissingToolError, UsageError
from trackwalker.launch.plan import new_local_id
from trackwalker.launch.slurm.script import STALE
from trackwalker.launch.submission import Submission
from trackwalker.node.stages.order import RUN_ID

_INTERACTIVE = ("4294967290", "interactive")  # the step that is salloc's own shell, where a site has it so


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave to this shell."""

    job: str
    nodes: int
    nodelist: str

    def words(self) -> str:
        """For people."""
        return f"allocation {self.job} ({self.nodes} node{'s' if self.nodes > 1 else ''}: {self.nodelist})"


def allocation_of(env: Mapping[str, str]) -> Allocation | None:
    """The allocation around this shell; None outside of one, and for a task of srun: it is one of several already."""
    job, nodes = env.get("SLURM_JOB_ID", ""), env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES", "")
    inside = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    if not job.isdigit() or not nodes.isdigit() or (inside and inside not in _INTERACTIVE):
        return None
    return Allocation(job, int(nodes), env.get("SLURM_JOB_NODELIST", ""))


def refuse_parts(env: Mapping[str, str]) -> None:
    """One run has equal nodes: an allocation of several parts is none for it."""
    parts = env.get("SLURM_HET_SIZE", "")
    if parts.isdigit() and int(parts) > 1:
        raise UsageError(
            f"this is a heterogeneous allocation of {parts} parts, and a run has equal nodes: salloc one part alone"
        )


class RunInAllocation:
    """A started run: look after it, end it."""

    def __init__(self, submission: Submission, place: Allocation, env: Mapping[str, str] | None = None) -> None:
        env = os.environ if env is None else env
        job = new_local_id(time.time())
        # Its own words on how it stands: for Slurm it is only a step of a job with another name.
        record = submission.record.model_copy(update={"scheduler": "local", "allocation": place.job})
        submission = Submission(
            submission.folder, submission.order, record, submission.checked, submission.config_yaml,
            submission.provenance,
        )  # fmt: skip
        submission.write()
        self.record = record.model_copy(update={"id": job})
        self.job_dir = submission.open_job(job)
        self.log = self.job_dir.parent / f"{self.job_dir.name}.log"
        self._stop = submission.folder / "stop-0"
        own = {k: v for k, v in env.items() if k not in STALE.split() and not k.startswith("SRUN_")}
        argv = [
            "srun", f"--nodes={place.nodes}", f"--ntasks={place.nodes}", "--ntasks-per-node=1", "--export=ALL",
            "--overlap", "--mpi=none", "--cpu-bind=none", "--input=none", "--kill-on-bad-exit=0", "--wait=0",
            sys.executable, str(submission.folder / "agent.pyz"), "node", str(submission.folder / "order.json"),
        ]  # fmt: skip
        try:
            with self.log.open("ab") as out:
                self._srun = subprocess.Popen(
                    argv, env={**own, RUN_ID: job}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                    start_new_session=True,
                )  # fmt: skip
        except FileNotFoundError:
            raise MissingToolError("'srun' is not here, and this shell is inside a Slurm allocation") from None

    def supervise(self) -> int | None:
        """The exit code once srun has ended: the job's, as its first node gave it."""
        return self._srun.poll()

    def cancel(self) -> None:
        """Ask the agents to end the run: the first one tells the others, and writes the summary.

        srun would answer a signal by killing every task at once; only who asks twice gets that.
        """
        if self._stop.exists():
            self._srun.terminate()
        self._stop.touch()

    def wait_closed(self) -> None:
        """Nothing outlives srun."""
