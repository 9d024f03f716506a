"""Which task of which job this process is, as Slurm, MPI, PyTorch, JAX or Kubernetes say in its environment."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trackwalker.errors import UsageError
from trackwalker.job.layout import ID_FORM

JOB_ID = "TRACKWALKER_JOB_ID"
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True)
class Task:
    """One of the processes that a launcher starts on one or several nodes."""

    job_id: str  # empty: nobody gave it one
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_size: int = 1  # tasks of this job on this node
    scheduler: str = "local"
    step: str = ""  # of a Slurm job with several steps
    attempt: int = 0

    @property
    def leads_node(self) -> bool:
        """Whether this task's recorder looks after all tasks of its node."""
        return self.local_rank == 0

    @property
    def is_head(self) -> bool:
        """Whether this task's recorder speaks for the job."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other task."""
        return self.world == 1


# Rank, number of ranks, place on the node, number of ranks on the node; and what all tasks of one job have in common.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_KVS", "HYDI_CONTROL_FD")),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR")),
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "", "", ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_IP")),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "", "", ("JOB_NAME",)),
    ("NODE_RANK", "NNODES", "", "", ("MASTER_ADDR", "JAX_COORDINATOR_IP")),
)  # fmt: skip


def find_task(env: Mapping[str, str]) -> Task:
    """What the environment says; an ordinary process is the only task of a job of its own."""
    given = env.get(JOB_ID) or (env.get("JOB_ID", "") if ID_FORM.match(env.get("JOB_ID", "")) else "")
    if given and not ID_FORM.match(given):
        raise UsageError(f"{JOB_ID}={given} is no job id; one that is: 8308 or local_20260131_120000_0a1b")
    slurm = env.get("SLURM_JOB_ID", "")
    if slurm and _number(env, "SLURM_STEP_ID") is not None and (rank := _number(env, "SLURM_PROCID")) is not None:
        world = _number(env, "SLURM_STEP_NUM_TASKS") or _number(env, "SLURM_NTASKS") or 1
        step = env["SLURM_STEP_ID"] if env["SLURM_STEP_ID"] != "0" else ""
        return Task(
            given or slurm,
            rank,
            max(world, rank + 1),
            _number(env, "SLURM_LOCALID") or 0,
            _tasks_here(env),
            "slurm",
            step,
            _number(env, "SLURM_RESTART_COUNT") or 0,
        )
    for rank_name, world_name, local_name, size_name, shared in _LAUNCHERS:
        number, count = _number(env, rank_name), _number(env, world_name)
        if number is None or count is None or not number < count or count == 1:
            continue
        job_id = given or slurm or _id_from(env, shared)
        if not job_id:
            break  # nothing says which tasks belong together: each is recorded by itself
        local, size = _number(env, local_name) or 0, _number(env, size_name) or 1
        scheduler = "slurm" if slurm else "kubernetes" if "KUBERNETES_SERVICE_HOST" in env else "local"
        return Task(job_id, number, count, local, size, scheduler)
    return Task(
        given or slurm, scheduler="slurm" if slurm else "local", attempt=_number(env, "SLURM_RESTART_COUNT") or 0
    )


def _id_from(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    """A number that all tasks of one launch come to by themselves, and two launches hardly ever share."""
    name = next((n for n in names if env.get(n)), "")
    if not name:
        return ""
    words = f"{env[name]} {env.get('MASTER_PORT', '')} {env.get('JAX_COORDINATOR_PORT', '')}"
    return str(10**9 + int(hashlib.sha256(words.encode()).hexdigest()[:12], 16) % (9 * 10**9))


def _tasks_here(env: Mapping[str, str]) -> int:
    """How many tasks this node has: `SLURM_STEP_TASKS_PER_NODE` says it as 2(x3),1 for all nodes in turn."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or "1"
    node = _number(env, "SLURM_NODEID") or 0
    counts = [int(n) for n, times in _REPEATED.findall(text) for _ in range(int(times or 1))]
    return counts[node] if node < len(counts) else 1


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
