"""A run that its command stays with: on this machine, as one node of several, or on the nodes of an allocation.

One node of several: the agent is the same as under Slurm and in a pod; what a scheduler would tell it, this tells it.
Nodes that are started by hand meet in the job directory, so they need one job id and a workspace that all of them see.
An allocation (`salloc`, a batch script): one agent on each node by srun. The run has an id and an end of its own, and
leaves the allocation as it was.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen

from trackwalker.errors import MissingToolError, UsageError
from trackwalker.job.layout import ID_FORM
from trackwalker.job.processes import short_hostname, spawn
from trackwalker.job.run import RunRecord
from trackwalker.launch.code.provenance import code_of
from trackwalker.launch.plan import new_local_id, plan_local, refuse_wrong
from trackwalker.launch.request.models import load_model
from trackwalker.launch.request.validate import MOST_NODES, Asked
from trackwalker.launch.request.words import Watching, parse_model_spec, parse_passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.launch.slurm.client import submit_environment
from trackwalker.launch.slurm.script import STALE
from trackwalker.launch.submission import How, Submission, plan_submission
from trackwalker.node.stages.order import RUN_ID

COORDINATOR = ("JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT")


@dataclass(frozen=True)
class Place:
    """Which node of which job this is, as the environment was set by hand."""

    job_id: str
    nodes: int = 1
    rank: int = 0
    coordinator: tuple[str, ...] = ()  # as words behind `--`


def place_by_hand(env: Mapping[str, str]) -> Place:
    """JOB_ID, NNODES, NODE_RANK and the coordinator's address; on one node none of them is needed."""
    nodes = _number(env, "NNODES", 1, 1, MOST_NODES)
    rank = _number(env, "NODE_RANK", 0, 0, nodes - 1)
    job_id = env.get("JOB_ID", "")
    if not job_id and nodes > 1:
        raise UsageError(
            f"NNODES={nodes}: the nodes meet by their JOB_ID; set the same, as {_new_id()}, on all of them"
        )
    if job_id and not ID_FORM.match(job_id):
        raise UsageError(f"JOB_ID={job_id} is no job id; one that is: {_new_id()}")
    given = tuple(f"_env_{name}={env[name]}" for name in COORDINATOR if env.get(name)) if nodes > 1 else ()
    return Place(job_id or _new_id(), nodes, rank, given)


class OneProcess:
    """A run that is one process of ours, which nothing outlives: look after it, end it."""

    record: RunRecord
    job_dir: Path
    log: Path
    _process: Popen[bytes]

    def supervise(self) -> int | None:
        """The exit code once it has ended: the job's, as its first node gave it."""
        return self._process.poll()

    def wait_closed(self) -> None:
        """Nothing to wait for."""


class RunByHand(OneProcess):
    """A started node."""

    def __init__(self, submission: Submission, place: Place) -> None:
        self.record = submission.record.model_copy(update={"id": place.job_id})
        self.job_dir = submission.order.workspace / f"{place.job_id}-{submission.order.name}"
        self.log = self.job_dir.parent / f"{self.job_dir.name}.log"
        if place.rank:
            self.log = self.job_dir / f"rank-{place.rank}.log"
        elif (self.job_dir / "events.jsonl").exists():
            raise UsageError(f"job {place.job_id} has run already: set another JOB_ID on all nodes")
        submission.write()
        if place.rank == 0:
            submission.open_job(place.job_id)
        folder = submission.folder
        self.said = folder / "agent.log"
        gone = {*STALE.split(), "NODE_NAME"}
        env = {k: v for k, v in submit_environment(os.environ).items() if k not in gone}
        seat = {"JOB_ID": place.job_id, "JOB_COMPLETION_INDEX": str(place.rank), "NODE_NAME": short_hostname()}
        argv = [sys.executable, str(folder / "agent.pyz"), "node", str(folder / "order.json")]
        self._process = spawn(argv, self.said, {**env, **seat})

    def cancel(self) -> None:
        """Ask the agent to end the run; it tells the ranks and writes the summary."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


def _number(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = env.get(name) or str(default)
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise UsageError(f"{name}={text}: a whole number from {least} to {most} is needed")
    return int(text)


def _new_id() -> str:
    return new_local_id(time.time())


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


class RunInAllocation(OneProcess):
    """A started run."""

    def __init__(self, submission: Submission, place: Allocation, env: Mapping[str, str] | None = None) -> None:
        env = os.environ if env is None else env
        job = new_local_id(time.time())
        # Its own words on how it stands: for Slurm it is only a step of a job with another name.
        record = submission.record.model_copy(update={"scheduler": "local", "allocation": place.job})
        submission = replace(submission, record=record)
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
            self._process = spawn(argv, self.log, {**own, RUN_ID: job})
        except FileNotFoundError:
            raise MissingToolError("'srun' is not here, and this shell is inside a Slurm allocation") from None

    def cancel(self) -> None:
        """Ask the agents to end the run: the first one tells the others, and writes the summary.

        srun would answer a signal by killing every task at once; only who asks twice gets that.
        """
        if self._stop.exists():
            self._process.terminate()
        self._stop.touch()


Started = LocalRun | RunByHand | RunInAllocation


@dataclass(frozen=True)
class Here:
    """What is asked for, as it was typed."""

    model: str
    words: list[str]  # behind `--`
    procs: int
    image: str | None
    registry: str
    runtime: str | None
    privileged: bool
    in_container: bool
    workspace: Path

    @property
    def native(self) -> bool:
        """Whether the ranks run without a container of ours."""
        return self.in_container or self.runtime == "native" or not (self.image or self.runtime)

    def refuse_wrong(self) -> None:
        """Raise what the trainer would say only once it runs, as far as that is known here."""
        if self.native and not self.in_container:
            refuse_wrong(load_model(parse_model_spec(self.model).model), parse_passthrough(self.words))


def start_here(run: Here, watching: Watching, say: Callable[[str], None]) -> Started:
    """Start it where it belongs: inside a Slurm allocation that is the allocation's nodes."""
    code = code_of(Path.cwd(), run.workspace, None if run.native else "")
    given = None if run.in_container else allocation_of(os.environ)
    how = How(
        scheduler="slurm" if given else "local",
        argv=sys.argv[1:],
        procs=run.procs,
        observe=watching.observe,
        ray=watching.ray,
        runtime="native" if run.native else run.runtime or "auto",
        privileged=run.privileged,
        listen=os.environ.get("TRACKWALKER_LISTEN", ""),
        provenance=code,
    )
    if given is None and run.native and not run.in_container:
        spec, passthrough = parse_model_spec(run.model), parse_passthrough(run.words)
        return LocalRun.start(plan_local(spec, passthrough, run.workspace, how))
    place = place_by_hand(os.environ if run.in_container else {})
    if given is not None:
        refuse_parts(os.environ)
        say(f"on the nodes of your Slurm {given.words()}")
    asked = Asked(
        run.model,
        run.words if given else [*place.coordinator, *run.words],
        given.nodes if given else place.nodes,
        image=None if run.native else run.image,
        registry=run.registry,
        workspace=run.workspace,
    )
    submission = plan_submission(asked, how)
    return RunInAllocation(submission, given) if given else RunByHand(submission, place)
