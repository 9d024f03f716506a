"""A command of the user's own as a recorded run: its job directory, its record, and what its agents are told.

The job directory, agent, recorder and log are those of every other run; what differs is that the ranks are started by
the user's command and only watched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trackwalker.job.processes import short_hostname
from trackwalker.job.run import RankPlace, RunRecord
from trackwalker.job.trust import make_folder, ours_alone
from trackwalker.job.whole import write_whole
from trackwalker.launch.code.provenance import Provenance
from trackwalker.launch.plan import Plan, code_facts, new_local_id, origin, starred
from trackwalker.launch.task import Task
from trackwalker.node.agent.spec import AgentSpec, RankSpec
from trackwalker.node.agent.workers import ERROR_FILE, KEPT

PROGRESS = "TRACKWALKER_PROGRESS"
RECORDED = "TRACKWALKER_RECORDED"  # the job that is recorded around a process: it is not recorded twice
_LAUNCHERS = ("bash", "sh", "env", "time", "nice", "numactl", "taskset", "torchrun", "accelerate", "deepspeed",
              "mpirun", "mpiexec")  # fmt: skip
_ODD = re.compile(r"[^A-Za-z0-9._+]+")
_LONGEST = 60


@dataclass(frozen=True)
class Room:
    """Where one task of a recorded command writes."""

    job_id: str
    name: str
    workspace: Path
    task: Task
    node: str

    @property
    def job_dir(self) -> Path:
        """The job's directory, the same for all tasks."""
        return self.workspace / f"{self.job_id}-{self.name}"

    @property
    def attempt(self) -> Path:
        """Where the nodes of this attempt meet."""
        return self.job_dir / "agent" / f"attempt-{self.task.attempt}"

    @property
    def files(self) -> Path:
        """The stem of this task's output, exit code and signals."""
        ranks = self.job_dir / "ranks" if self.task.is_alone else self.attempt / "tasks"
        return ranks / str(self.task.rank)

    @property
    def log(self) -> Path:
        """The job's log."""
        return self.workspace / f"{self.job_dir.name}.log"

    def open(self) -> None:
        """Make the folders; one that somebody else put there raises PermissionError."""
        self.workspace.mkdir(parents=True, exist_ok=True)
        make_folder(self.job_dir)
        with ours_alone():
            self.files.parent.mkdir(parents=True, exist_ok=True)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What the command is told beyond what it was told before: where to report, if it wants to."""
        added = {RECORDED: self.job_id, PROGRESS: str(self.files.with_suffix(".progress.jsonl"))}
        return {ERROR_FILE: str(self.files.with_suffix(".error.json")), **env, **added}


def room_for(argv: Sequence[str], task: Task, workspace: Path, name: str | None) -> Room:
    """Where this run goes: a Slurm job keeps its number, all others get an id as local runs have it."""
    job_id = task.job_id or new_local_id(time.time())
    named = (name or name_of(argv)) + (f".{task.step}" if task.step else "")
    room = Room(job_id, named, workspace.absolute(), task, _node())
    again = 1
    while task.is_alone and room.job_dir.exists():  # a batch script that runs the same command twice
        again += 1
        room = replace(room, name=f"{named}.{again}")
    return room


def name_of(argv: Sequence[str]) -> str:
    """The script that is run: that of a launcher, not the launcher."""
    words = [w for w in argv if not w.startswith("-") and "=" not in w]
    scripts = [w for w in words if w.endswith((".py", ".sh", ".sbatch"))]
    module = next((argv[i + 1] for i, w in enumerate(argv[:-1]) if w == "-m"), "")
    inline = {argv[i + 1] for i, w in enumerate(argv[:-1]) if w in ("-c", "-lc")}
    programs = [w for w in words if w not in inline and not w.isdigit()]
    others = [w for w in programs if (stem := w.rpartition("/")[2]) not in _LAUNCHERS and not stem.startswith("python")]
    chosen = (scripts or ([module] if module else []) or others or programs or list(argv))[0]
    stem = re.sub(r"\.(py|sh|sbatch)$", "", chosen.rstrip("/").rpartition("/")[2])
    return _ODD.sub("-", stem).strip("-.")[:_LONGEST] or "command"


def plan_command(
    room: Room, argv: Sequence[str], process: tuple[int, int], observe: bool, typed: list[str],
    provenance: Provenance | None, env: Mapping[str, str] = os.environ, old: int | None = None,
) -> Plan:  # fmt: skip
    """The record and the agent's orders for a command; one that was joined later has an environment of its own."""
    rank = guest(room, argv, process, env, old)
    now = time.time()
    record = RunRecord(
        id=room.job_id,
        name=room.name,
        model=room.name,
        scheduler=room.task.scheduler,
        trainer="command",
        created=now,
        argv=[starred(word) for word in typed],
        command=[starred(word) for word in argv],
        ranks=[RankPlace(rank=rank.rank, host=rank.host, node=room.node)],
        attached=old is not None,
        observe=observe,
        workspace=str(room.workspace),
        origin=origin(),
        code=code_facts(provenance),
    )
    agent = AgentSpec(
        job_id=room.job_id,
        job_name=room.name,
        model=room.name,
        node=room.node,
        job_dir=room.job_dir,
        ranks=[rank],
        world=room.task.world,
        attempt=room.task.attempt,
        **{"log": room.log, **_among_others(room)},
    )
    return Plan(record, agent, {}, header(room, argv), room.log, "", provenance)


def _among_others(room: Room) -> dict[str, Any]:
    """What an agent needs to know where it is one of several."""
    task = room.task
    if task.is_alone:
        return {}
    own = room.attempt / str(task.rank)
    nodes = max(2, -(-task.world // task.local_size)) if task.local_size < task.world else 1
    crew = {"attempt": str(room.attempt), "number": task.rank, "here": task.local_size, "nodes": nodes}
    return {"own": own, "log": room.log if task.is_head else own / "merged.log", "nodes": nodes, "crew": crew}


def header(room: Room, argv: Sequence[str]) -> str:
    """The first lines of the log."""
    nodes = os.environ.get("SLURM_JOB_NODELIST", "") if room.task.scheduler == "slurm" else ""
    rows = [
        f"JOB_ID={room.job_id}",
        f"JOB_NAME={room.name}",
        *([f"JOB_NODELIST={nodes or room.node}"]),
        f"MODEL_NAME={room.name}",
        f"COMMAND={' '.join(starred(word) for word in argv)}",
    ]
    return "".join(f"{' '.join(row.splitlines())}\n" for row in rows)


def guest(
    room: Room, argv: Sequence[str], process: tuple[int, int], env: Mapping[str, str] = os.environ,
    old: int | None = None,
) -> RankSpec:  # fmt: skip
    """This task as its node's agent watches it."""
    task = room.task
    return RankSpec(
        rank=task.rank,
        host=f"{room.node}-r{task.rank}" if task.is_alone else room.node,
        argv=[argv[0]],  # the words may hold secrets, and only its program is needed
        env={name: env[name] for name in KEPT if name in env},
        pid=process[0],
        start=process[1],
        command=list(process),
        files=str(room.files),
        old=old,
        speaks=old is None or task.is_head,  # the file that a joined run prints into is told once
    )


def post_task(
    room: Room, argv: Sequence[str], process: tuple[int, int], env: Mapping[str, str] = os.environ,
    old: int | None = None,
) -> None:  # fmt: skip
    """Tell this node's agent of a task among many."""
    note = {**asdict(guest(room, argv, process, env, old)), "node": room.node, "local_rank": room.task.local_rank}
    with contextlib.suppress(OSError), ours_alone():
        write_whole(room.files.with_suffix(".json"), json.dumps(note), mode=0o600)


def _node() -> str:
    """This machine's name; several nodes of a test's Slurm share one machine."""
    return os.environ.get("TRACKWALKER_NODE") or os.environ.get("SLURMD_NODENAME") or short_hostname()
