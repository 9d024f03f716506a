"""Submits stub runs to a real Slurm, and makes the job directory that `submit` would make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurm_cluster import SlurmCluster

from trackwalker.job.run import RunRecord
from trackwalker.job.slurm.states import JobState
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.slurm.script import render_script, sbatch_options

NAME = "JAX-stub"
# Stands for the node agent: it says what it was given and does what order.json says.
STUB = """
import json, os, signal, sys, time
order = json.loads(open(sys.argv[2]).read())
rank = os.environ["SLURM_NODEID"]
told = []
signal.signal(signal.SIGTERM, lambda n, f: told.append(n))
attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
print(f"{rank}: up attempt={attempt} word={sys.argv[1]} coordinator={os.environ.get('JAX_COORDINATOR_IP')}", flush=True)
end = time.monotonic() + order["seconds"]
while time.monotonic() < end and not told:
    time.sleep(0.05)
if told:
    time.sleep(0.5)  # the wait is the subject: the grace that ranks need to write what they have
print(f"{rank}: end told={[int(n) for n in told]}", flush=True)
sys.exit(order["exit"])
"""


class Submitter:
    """Submits stub runs into one workspace."""

    def __init__(self, cluster: SlurmCluster, workspace: Path) -> None:
        self.cluster = cluster
        self.workspace = workspace
        self.slurm = Slurm(cluster.env)
        self.folder = workspace  # of the last submission
        self._count = 0

    def submit(
        self, options: SubmitOptions, seconds: float = 300, code: int = 0, env: dict[str, str] | None = None
    ) -> str:
        self._count += 1
        self.folder = folder = self.workspace / ".submissions" / str(self._count)
        folder.mkdir(parents=True)
        (folder / "agent.pyz").write_text(STUB)
        (folder / "order.json").write_text(f'{{"seconds": {seconds}, "exit": {code}}}')
        script = folder / "job.sh"
        script.write_text(render_script(folder))
        slurm = Slurm({**self.cluster.env, **(env or {})})
        return slurm.submit(script, sbatch_options(options, NAME, self.workspace, folder)).id

    def log(self, job: str, name: str = NAME) -> str:
        path = self.workspace / f"{job}-{name}.log"
        return path.read_text() if path.exists() else ""

    def until(self, job: str, ready: Callable[[JobState], bool], seconds: float = 40) -> JobState:
        seen: list[JobState] = []

        def look() -> JobState | None:
            seen.append(self.slurm.state(job))
            return seen[-1] if ready(seen[-1]) else None

        try:
            found: JobState = self.cluster.wait_for(look, f"end of the wait for job {job}", seconds)
        except AssertionError as e:
            raise AssertionError(f"last seen: {seen[-1]}; {e}") from e
        return found

    def until_up(self, job: str, agents: int) -> None:
        self.cluster.wait_for(lambda: self.log(job).count(": up ") >= agents, f"{agents} agents of job {job}", 30)


def open_job(at: Submitter, job: str, name: str = NAME) -> Path:
    """The job directory as `submit` makes it, which is there before the log."""
    folder = at.workspace / f"{job}-{name}"
    folder.mkdir()
    (folder / "log").symlink_to(f"../{folder.name}.log")
    RunRecord(
        id=job,
        name=name,
        model="stub",
        scheduler="slurm",
        trainer="tiny",
        created=0,
        argv=[],
        command=[],
        workspace=".",
    ).save(folder / "run.json")
    return folder
