"""A run that is going already, joined: collectors and recorder from now on, its log from the beginning.

Nobody but a parent learns an exit code, so of such a run none is claimed: its log and its scheduler say how it ended.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.job.processes import read_bytes, read_stat, short_hostname
from trackwalker.launch.command import Room, name_of, plan_command, post_task
from trackwalker.launch.kubernetes.client import kubectl, refusal
from trackwalker.launch.plan import new_local_id
from trackwalker.launch.recording import JoinedRun, tell_verdict
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.task import Task, find_task
from trackwalker.node.agent.workers import environment

Say = Callable[[str], None]
_LOOK_S = 1.0
_CLOSED_S = 10.0


class Joined:
    """A process (and what runs below it) that is recorded from now on."""

    def __init__(self, room: Room, pid: int, log: Path | None) -> None:
        self.room, self.pid = room, pid
        self._log = log

    def describe(self) -> tuple[list[str], tuple[int, int], dict[str, str]]:
        """Its command, process id with start time, and environment."""
        held = read_stat(self.pid)
        if held is None or held.state in "ZX":
            raise UsageError(f"no process {self.pid}")
        words = [
            w for w in (read_bytes(f"/proc/{self.pid}/cmdline") or b"").decode("utf-8", "replace").split("\0") if w
        ]
        return words or [str(self.pid)], (self.pid, held.start), environment(self.pid)

    def open(self) -> int:
        """Make the folders, and the log that is there the source of its lines; how much of that is older than we."""
        self.room.open()
        if self._log is None:
            return 0
        raw = self.room.files.with_suffix(".out")
        with contextlib.suppress(FileExistsError):
            raw.symlink_to(self._log)
        return self._log.stat().st_size


def attach_process(pid: int, workspace: Path, name: str | None, log: Path | None, metrics: bool, say: Say) -> int:
    """Record a process of this machine until it ends."""
    _mine(pid)
    log = log.absolute() if log else output_of(pid)
    if log is None:
        say(f"the output of {pid} goes to no file that could be read: name its log with --log, or there are no steps")
    task = replace(Task(""), job_id=new_local_id(time.time()))
    words = (read_bytes(f"/proc/{pid}/cmdline") or b"").decode("utf-8", "replace").split("\0")
    room = Room(task.job_id, name or name_of([w for w in words if w] or [str(pid)]), workspace.absolute(), task,
                short_hostname())  # fmt: skip
    return _follow(_start([Joined(room, pid, log)], metrics), room, say)


def attach_slurm(job: str, workspace: Path, name: str | None, log: Path | None, metrics: bool, say: Say) -> int:
    """Record a running Slurm job: a step of ours beside its own on every node; inside that step, this node's part."""
    if os.environ.get("SLURM_JOB_ID") == job and os.environ.get("SLURM_STEP_ID", "").isdigit():
        return _attach_node(job, workspace, name or "job", log, metrics, say)
    client = Slurm()
    state = client.state(job)
    if state.state != "running":
        raise UsageError(f"job {job} is not running: {state.meaning or state.state} {state.reason}".rstrip())
    named = name or name_of([state.name or "job"])
    folder = workspace.absolute() / f"{job}-{named}"
    if folder.exists():
        raise UsageError(f"job {job} is recorded already: {folder}")
    workspace.mkdir(parents=True, exist_ok=True)
    nodes = len(client.hostnames(state.nodes))
    argv = step_argv(job, nodes, workspace.absolute(), named, str(log or state.log or ""), metrics)
    with contextlib.suppress(KeyboardInterrupt):
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False).returncode
        if not (folder / "events.jsonl").exists():
            raise TrackwalkerError(f"job {job} was not joined: srun ended with exit code {code}")
    tell_verdict(folder, job, say)
    return 0


def step_argv(job: str, nodes: int, workspace: Path, name: str, log: str, metrics: bool) -> list[str]:
    """The step that joins the job: one task of ours on every node, within what the job has."""
    srun = ["srun", f"--jobid={job}", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1",
            "--cpu-bind=none", "--mem=0", "--no-kill"]  # fmt: skip
    ours = [
        sys.executable,
        "-m",
        "trackwalker",
        "attach",
        "--slurm",
        job,
        "--workspace",
        str(workspace),
        "--name",
        name,
    ]
    return [*srun, *ours, *(["--log", log] if log else []), *([] if metrics else ["--no-metrics"])]


def _attach_node(job: str, workspace: Path, name: str, log: Path | None, metrics: bool, say: Say) -> int:
    node = os.environ.get("SLURMD_NODENAME") or short_hostname()
    found = tasks_here(job, node, os.environ.get("SLURM_STEP_ID", ""))
    if not found:
        say(f"no process of job {job} runs on {node}")
        return 0
    joined = []
    for pid, task in found:
        room = Room(job, name, workspace.absolute(), task, node)
        joined.append(Joined(room, pid, log if log and log.is_file() else None))
    return _follow(_start(joined, metrics), joined[0].room, say, verdict=False)


def tasks_here(job: str, node: str, own_step: str) -> list[tuple[int, Task]]:
    """The tasks of a Slurm job on this node, their uppermost processes, in the order of their ranks.

    Of several steps it is the one with most tasks, of those the last; a batch script without steps is one task.
    """
    steps: dict[tuple[int, int], dict[int, tuple[int, Task]]] = {}
    batch: list[int] = []
    members = dict(_processes(job, node))
    for pid, env in members.items():
        held = read_stat(pid)
        step = env.get("SLURM_STEP_ID", "")
        above = members.get(held.parent, {}) if held else {}
        if above and above.get("SLURM_STEP_ID", "") == step and above.get("SLURM_PROCID") == env.get("SLURM_PROCID"):
            continue  # what a task forked is part of it
        if not step.isdigit() or int(step) > 1 << 30:
            batch.append(pid)
        elif step != own_step:
            task = replace(find_task({**env, "SLURM_JOB_ID": job}), job_id=job)
            steps.setdefault((task.world, int(step)), {}).setdefault(task.rank, (pid, task))
    if steps:
        chosen = steps[max(steps)]
        return [chosen[rank] for rank in sorted(chosen)]
    return [(pid, Task(job, scheduler="slurm")) for pid in batch[:1]]


def _processes(job: str, node: str) -> Iterator[tuple[int, dict[str, str]]]:
    for name in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        env = environment(int(name))
        if env.get("SLURM_JOB_ID") == job and env.get("SLURMD_NODENAME", node) == node and "SLURM_PROCID" in env:
            yield int(name), env


def attach_pod(pod: str, namespace: str, container: str, workspace: Path, metrics: bool, say: Say) -> int:
    """Record what runs in a pod: our part runs inside it, its log comes from kubectl; both see the workspace."""
    job_id = new_local_id(time.time())
    folder = workspace.absolute() / ".attached"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{job_id}.log"
    where = ["--namespace", namespace] if namespace else []
    inside = ["--container", container] if container else []
    seen = kubectl(["kubectl", "get", "pod", pod, *where, "--output", "jsonpath={.status.phase}"])
    if seen.code != 0:
        raise refusal(f"pod {pod}", seen)
    if seen.out.strip() != "Running":
        raise UsageError(f"pod {pod} is not running: {seen.out.strip() or 'no word of it'}")
    with log.open("wb") as out:
        follow = ["kubectl", "logs", pod, *where, *inside, "--follow"]
        logs = subprocess.Popen(follow, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
    try:
        time.sleep(_LOOK_S)  # what it has printed so far is older than the recording
        return subprocess.run(
            pod_argv(pod, [*where, *inside], workspace.absolute(), log, metrics), check=False
        ).returncode
    finally:
        logs.terminate()
        logs.wait()
        say(f"the pod's log: {log}")


def pod_argv(pod: str, where: list[str], workspace: Path, log: Path, metrics: bool) -> list[str]:
    """What is run inside the pod: process 1 is what its container was started for."""
    ours = ["trackwalker", "attach", "--pid", "1", "--workspace", str(workspace), "--log", str(log), "--name", pod]
    return ["kubectl", "exec", pod, *where, "--", *ours, *([] if metrics else ["--no-metrics"])]


def output_of(pid: int) -> Path | None:
    """The file that a process prints into; None for a terminal, a pipe and a file that is gone."""
    for number in (1, 2):
        link = Path(f"/proc/{pid}/fd/{number}")
        with contextlib.suppress(OSError):
            target = link.readlink()
            if stat.S_ISREG(link.stat().st_mode) and target.is_file() and os.access(target, os.R_OK):
                return target
    return None


def _mine(pid: int) -> None:
    seen = read_stat(pid)
    if seen is None or seen.state == "Z":  # what has ended and was not waited for shows nobody its files
        raise UsageError(f"--pid {pid}: there is no such process")
    try:
        os.readlink(f"/proc/{pid}/exe")
        Path(f"/proc/{pid}/environ").open("rb").close()
    except OSError:
        raise UsageError(f"--pid {pid}: the process is another user's; only its owner (or root) can join it") from None


def _start(joined: list[Joined], metrics: bool) -> LocalRun:
    """Agent and recorder for these; on a node of several the first task's room is the agent's."""
    plans = []
    for each in joined:
        words, process, env = each.describe()
        old = each.open()
        if not each.room.task.is_alone:
            post_task(each.room, words, process, env, old)
        plans.append(plan_command(each.room, words, process, metrics, sys.argv[1:], None, env, old))
    return LocalRun.start(plans[0]) if joined[0].room.task.is_alone else JoinedRun.start(plans[0])


def _follow(run: LocalRun, room: Room, say: Say, verdict: bool = True) -> int:
    if room.task.is_head:
        say(f"job {room.job_id}  log {room.log}")
    try:
        while run.supervise() is None:
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        say("left; the recording goes on until the run ends")
        return 0
    run.wait_closed(_CLOSED_S)
    if verdict:
        tell_verdict(room.job_dir, room.job_id, say)
    return 0
