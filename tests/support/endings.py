"""Every way in which a job ends on a real Slurm: who does what to it, and what is true of it afterwards.

Each case has nodes of its own, so all of them run at once. The same cases run with our agent (`submit`) and as a user's
own batch script around a plain Python trainer (`own`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_cluster import SlurmCluster, _parent, _read

from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.slurm import plan_batch, submit
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.submission import How, plan_submission

CONF = """
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""
PARTITIONS = (
    "PartitionName=urgent Nodes={nodes} PriorityTier=9\nPartitionName=small Nodes={first} MaxTime=10 MaxNodes=1"
)
PROLOG = "#!/bin/bash\n[ ! -e {mark}-$SLURM_JOB_ID ] && [ ! -e {mark}-$SLURMD_NODENAME ]\n"

# Ranks that really wait for each other: one byte a step over a socket. Plain Python, no trainer's framework.
TRAINER = """
import os, pathlib, socket, sys, time
rank = int(os.environ.get("NODE_RANK") or os.environ.get("SLURM_PROCID") or 0)
world = int(os.environ.get("NNODES") or os.environ.get("SLURM_NTASKS") or 1)
how, steps, place = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
meet = place / ("port-" + os.environ["SLURM_JOB_ID"] + "-" + attempt)
peers = []
if rank == 0:
    server = socket.create_server(("127.0.0.1", 0))
    meet.with_suffix(".new").write_text(str(server.getsockname()[1]))
    meet.with_suffix(".new").rename(meet)
    peers = [server.accept()[0] for _ in range(world - 1)]
    print("Config param steps:", steps, flush=True)
else:
    while not meet.exists():
        time.sleep(0.1)
    peers = [socket.create_connection(("127.0.0.1", int(meet.read_text())))]
for step in range(steps):
    for peer in peers:
        peer.sendall(b"x")
    for peer in peers:
        if not peer.recv(1):
            raise ConnectionResetError(104, "Connection reset by peer")
    if rank == 0:
        said = "seconds: 0.300, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0"
        print(f"completed step: {step}, {said}", flush=True)
        if step % 4 == 3:
            print(f"Saved a checkpoint at step {step}.", flush=True)
    time.sleep(0.2)
    if how == "fail" and rank == world - 1 and step == 4:
        raise ValueError("the tokenizer has no such word")
    if how == "fail-later" and attempt != "0" and rank == world - 1 and step == 4:
        raise ValueError("the tokenizer has no such word")
    if how == "eat" and step == 4:
        held = [bytearray(b"x" * (64 << 20)) for _ in range(40)]
"""
OWN = """\
#!/bin/bash
srun --kill-on-bad-exit=1 {python} {trainer} {how} {steps} {place}
"""


@dataclass
class Started:
    """A job of the matrix while it is dealt with."""

    case: Case
    cluster: SlurmCluster
    workspace: Path
    mode: str
    nodes: list[str]
    id: str = ""
    log: Path = Path()
    dir: Path | None = None
    refused: str = ""
    other: str = ""  # a job that pushed it aside
    did: float = 0.0
    done: bool = field(default=False)

    @property
    def text(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace") if self.log.is_file() else ""

    def state(self) -> str:
        """Slurm's own word."""
        said = self.cluster.client("scontrol", "show", "job", "-o", self.id, check=False)
        return next((w.partition("=")[2] for w in said.split() if w.startswith("JobState=")), "")

    def pids(self, *words: str, node: str = "") -> list[int]:
        """Processes of this job by words of their command line."""
        found = []
        for pid in self.cluster._belonging():
            line, env = _read(pid, "cmdline").replace("\0", " "), _read(pid, "environ")
            mine = f"SLURM_JOB_ID={self.id}\0" in env or f"[{self.id}." in line
            if mine and all(w in line for w in words) and (not node or f"SLURMD_NODENAME={node}\0" in env):
                found.append(pid)
        return found

    def stepds(self, node: str, step: str) -> list[int]:
        """The keeper of a step on a node: `slurmstepd: [7.0]`, found through what it runs."""
        tasks = [p for p in self.pids(node=node) if "slurmstepd" not in _read(p, "cmdline")]
        keepers = {p for task in tasks for p in _ancestors(task) if f"[{self.id}.{step}]" in _read(p, "cmdline")}
        return sorted(keepers)


Act = Callable[[Started], None]


@dataclass(frozen=True)
class Case:
    """One way to end."""

    name: str
    state: str  # our word for the end
    exit: int | None
    act: Act = lambda it: None
    nodes: int = 2
    how: str = "run"
    steps: int = 4000
    when: str = "completed step: 5"  # in the log, before anything is done to it
    after: Callable[[Started], bool] = lambda it: it.state() not in ("RUNNING", "COMPLETING", "PENDING", "CONFIGURING")
    options: tuple[str, ...] = ()
    bad: int | None = None  # which of its nodes is to blame; None: nobody
    seconds: float = 150.0
    cause: tuple[str, ...] = ()  # what triage and diagnose may call it
    modes: tuple[str, ...] = ("submit", "own")
    by: str = ""  # the user who ended it, where that is not its owner


def _ancestors(pid: int) -> list[int]:
    found = []
    while (pid := _parent(pid)) > 1:
        found.append(pid)
    return found


def _kill(pids: Sequence[int]) -> None:
    assert pids, "nothing to kill"
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def node_down(it: Started) -> None:
    it.cluster.client("scontrol", "update", f"NodeName={it.nodes[-1]}", "State=DOWN", "Reason=test")


def soon_over(it: Started) -> None:
    """Its time limit is now; Slurm looks every thirty seconds."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 3))
    it.cluster.client("scontrol", "update", f"JobId={it.id}", f"EndTime={at}")


def kill_head(it: Started) -> None:
    it.cluster.kill_node(it.nodes[0])


def kill_other(it: Started) -> None:
    it.cluster.kill_node(it.nodes[-1])


def kill_slurmd(it: Started) -> None:
    daemon = it.cluster._daemons.pop(it.nodes[-1])
    daemon.kill()
    daemon.wait()


def push_aside(it: Started) -> None:
    it.other = it.cluster.client(
        "sbatch",
        "--parsable",
        "-p",
        "urgent",
        "--exclusive",
        "-w",
        ",".join(it.nodes),
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 1",
    ).strip()


def cancel(it: Started) -> None:
    it.cluster.client("scancel", it.id)


ADMIN = "nobody"  # any user who is not the jobs' owner


def let_in(cluster: SlurmCluster) -> None:
    """Make that user an administrator of Slurm, who may read what a client has to."""
    cluster.client("sacctmgr", "-i", "add", "account", "ops", timeout=60)
    cluster.client("sacctmgr", "-i", "add", "user", ADMIN, "account=ops", "adminlevel=Admin", timeout=60)
    cluster.dir.chmod(0o755)


def cancel_as_admin(it: Started) -> None:
    """Not its owner: only the accounting says who it was."""
    subprocess.run(["scancel", it.id], env=it.cluster.env, user=ADMIN, check=True, timeout=30, cwd="/")


def requeue(it: Started) -> None:
    """Once more, while it runs."""
    it.cluster.client("scontrol", "requeue", it.id)
    it.cluster.wait_for(
        lambda: "Restarts=1" in it.cluster.client("scontrol", "show", "job", "-o", it.id), "restart", 30
    )


def keeper_then_cancel(it: Started) -> None:
    """Slurm misses the keeper of a batch script only when the node registers again, in minutes; a person is quicker."""
    _kill(it.stepds(it.nodes[0], "batch"))
    it.cluster.client("scancel", it.id)


def shown(it: Started) -> str:
    return it.cluster.client("scontrol", "show", "job", it.id, check=False)


DEAD = ("node-death",)
RAISED = ("python-exception", "peer-died")  # whose words a log without labels has first is chance
ONCE = ("--no-requeue",)
SUBMIT = ("submit",)  # the others have no log, so no command knows them
CASES = [
    Case("complete", "completed", 0, nodes=2, steps=8),
    Case("fail", "failed", 1, how="fail", when="completed step: 3", cause=RAISED),
    Case("scancel", "cancelled", 143, cancel, nodes=1, cause=("user-cancel",)),
    Case("admin", "cancelled", 143, cancel_as_admin, nodes=1, cause=("user-cancel",), by=ADMIN),
    Case("time-limit", "timeout", 124, soon_over, cause=("walltime",)),
    Case("node-down", "node-fail", 1, node_down, bad=-1, cause=DEAD, options=ONCE),
    Case("slurmd-killed", "node-fail", 1, kill_slurmd, bad=-1, cause=DEAD, options=ONCE),
    Case("head-killed", "node-fail", 1, kill_head, bad=0, cause=DEAD, options=ONCE),
    Case("other-killed", "node-fail", 1, kill_other, bad=-1, cause=DEAD, options=ONCE),
    Case("requeue-success", "completed", 0, requeue, steps=60, options=("--requeue",)),
    Case("requeue-fail", "failed", 1, requeue, how="fail-later", cause=RAISED, options=("--requeue",)),
    Case("preempted", "preempted", 143, push_aside, cause=("preempted",), options=ONCE),
    Case("oom", "oom", 137, how="eat", nodes=1, when="completed step: 3", cause=("oom-host",)),
    Case("batch-killed", "failed", 137, lambda it: _kill(it.pids("slurm_script")), cause=("launcher-killed",)),
    Case("srun-killed", "failed", 137, lambda it: _kill(it.pids("srun")), cause=("launcher-killed",)),
    Case("stepd-killed", "cancelled", 143, keeper_then_cancel, cause=("user-cancel",)),
    Case("hold", "pending", None, nodes=1, when="", options=("--hold",), after=lambda it: True, modes=SUBMIT),
    Case(
        "never", "pending", None, nodes=1, when="", options=("--dependency=afterok:{failed}",),
        after=lambda it: "DependencyNeverSatisfied" in shown(it), modes=SUBMIT,
    ),
    Case(
        "prolog", "launch-failed", None, nodes=1, when="", options=("--requeue",),
        after=lambda it: "held" in shown(it).lower(), modes=SUBMIT,
    ),
    Case("prolog-once", "failed", 1, nodes=1, when="", options=ONCE, modes=SUBMIT),
]  # fmt: skip


def start(
    case: Case, cluster: SlurmCluster, workspace: Path, mode: str, nodes: list[str], mark: Path, failed: str = ""
) -> Started:
    """Queue a case's job."""
    it = Started(case, cluster, workspace, mode, nodes)
    if case.name.startswith("prolog"):
        mark.with_name(f"{mark.name}-{nodes[0]}").touch()
    trainer = workspace.parent / "trainer.py"
    trainer.write_text(TRAINER)
    words = [o.format(failed=failed) for o in case.options]
    asked = [case.how, str(case.steps), str(workspace.parent)]
    if mode == "submit":
        planned = plan_submission(
            Asked("tiny", nodes=case.nodes, workspace=workspace), How("slurm", ["submit", "tiny"])
        )
        order = dataclasses.replace(
            planned.order, argv=[sys.executable, str(trainer), *asked], output=None, steps=case.steps
        )
        again = any(w == "--requeue" for w in words)
        options = SubmitOptions(
            nodes=case.nodes, nodelist=",".join(nodes), requeue=again, extra=[w for w in words if "requeue" not in w]
        )
        slurm = Slurm(cluster.env)
        queued = submit(plan_batch(dataclasses.replace(planned, order=order), options, slurm, sys.executable), slurm)
        it.id, it.log, it.dir = queued.id, queued.log, queued.job_dir
        return it
    script = workspace.parent / f"own-{case.name}.sh"
    how, steps, place = asked
    script.write_text(OWN.format(python=sys.executable, trainer=trainer, how=how, steps=steps, place=place))
    it.id = cluster.client(
        "sbatch",
        "--parsable",
        f"--output={workspace}/%j-own.log",
        "--open-mode=append",
        "--exclusive",
        "--mem=0",
        "--ntasks-per-node=1",
        f"--nodes={case.nodes}",
        f"--nodelist={','.join(nodes)}",
        *words,
        str(script),
    ).strip()
    it.log = workspace / f"{it.id}-own.log"
    return it


def play(cases: Sequence[Case], cluster: SlurmCluster, workspace: Path, mode: str, mark: Path) -> dict[str, Started]:
    """All cases at once, each to its end."""
    free = list(cluster.names)
    jobs: dict[str, Started] = {}
    failed = cluster.client("sbatch", "--parsable", "-o", "/dev/null", "-w", free[-1], "--wrap", "exit 3").strip()
    for case in cases:
        nodes = [free.pop(0) for _ in range(case.nodes)]
        jobs[case.name] = start(case, cluster, workspace, mode, nodes, mark, failed)
    deadline = time.monotonic() + max(c.seconds for c in cases)
    acted: set[str] = set()
    while time.monotonic() < deadline and not all(it.done for it in jobs.values()):
        for it in jobs.values():
            if it.case.name not in acted and it.case.when in it.text:
                acted.add(it.case.name)
                it.did = time.time()
                it.case.act(it)
            elif it.case.name in acted and not it.done:
                it.done = it.case.after(it)
        time.sleep(0.2)
    late = [f"{it.case.name}: {it.state()}\n{it.text[-1500:]}" for it in jobs.values() if not it.done]
    assert not late, "\n".join(late)
    return jobs
