"""Deaths on a real Slurm: of an agent, its keeper, one process of several, a reader of the log; nothing is left."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_run import Run

from trackwalker.diagnose.triage import triage
from trackwalker.job.journal import read
from trackwalker.job.resolve import resolve
from trackwalker.launch.ledger import incidents
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.slurm import plan_batch, submit
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.submission import How, Submission, plan_submission
from trackwalker.node.evidence import coredump

pytestmark = [
    pytest.mark.disturbed_by_load(reason="signals reach ranks that must have started by then"),
    pytest.mark.timeout(240),
]
STEPS = """
import os, sys, time
rank = int(os.environ.get("GLOBAL_RANK") or os.environ["NODE_RANK"])
steps = int(sys.argv[1])
print("Config param steps:", steps, flush=True)
for step in range(steps):
    print(f"completed step: {step}, seconds: 0.100, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0", flush=True)
    time.sleep(0.1)
"""
CRASH = STEPS + "    if rank == 1 and step == 3:\n        import ctypes; ctypes.string_at(0)\n"
TEARDOWN = STEPS + "\nif rank == 0:\n    raise RuntimeError('the profiler could not be closed')\n"
# A helper that leaves everything behind that could tell whose it is: session, environment, output.
DAEMON = STEPS.replace(
    "for step",
    "import subprocess\nsubprocess.Popen([sys.executable, '-c', "
    "\"import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\ntime.sleep(300)\"], env={'PATH': '/bin'},"
    " stdin=open(__import__('os').environ['OPENED']), stdout=-3, stderr=-3, start_new_session=True)\nfor step",
    1,
)


@pytest.fixture
def cluster(slurm: SlurmCluster) -> SlurmCluster:
    """The worker's own: the deaths are of processes, and no node is taken away."""
    return slurm


def planned(workspace: Path, script: str, nodes: int, steps: int, **order: object) -> Submission:
    asked = Asked("tiny", nodes=nodes, workspace=workspace)
    submission = plan_submission(asked, How("slurm", ["submit", "tiny"]))
    words = [sys.executable, "-c", script, str(steps)]
    return dataclasses.replace(
        submission, order=dataclasses.replace(submission.order, argv=words, output=None, steps=steps, **order)
    )


@pytest.fixture
def start(cluster: SlurmCluster, tmp_path: Path) -> Callable[..., Run]:
    def start(script: str = STEPS, steps: int = 600, nodes: int = 2, **order: object) -> Run:
        slurm = Slurm(cluster.env)
        submission = planned(tmp_path, script, nodes, steps, **order)
        return Run(cluster, submit(plan_batch(submission, SubmitOptions(nodes=nodes), slurm, sys.executable), slurm))

    return start


def test_r20_an_agent_that_is_killed_takes_its_ranks_along_and_is_named(start: Callable[..., Run]) -> None:
    run = start()
    run.says("1: completed step: 2")
    os.kill(run.agents("n2")[1], signal.SIGKILL)
    assert run.ends() == "failed"
    assert "FIRST_FAILURE rank=1 host=n2 exit=137 cause=its agent was killed by SIGKILL" in run.text
    assert run.summary() == "Status: FAILED (exit 137) — Training FAILED (exit=137)"
    assert run.slurm.state(run.id).exit_code == 137
    assert triage(resolve(run.id, run.dir.parent)).status == "failed"
    (incident,) = incidents(run.dir.parent)
    assert (incident.host, incident.kind, incident.exit) == ("n2", "first-failure", 137)


def test_r20_the_first_nodes_agent_is_killed_and_the_job_still_has_its_summary(start: Callable[..., Run]) -> None:
    run = start()
    run.says("1: completed step: 2")
    os.kill(run.agents("n1")[1], signal.SIGKILL)
    assert run.ends() == "failed"
    assert "FIRST_FAILURE rank=0 host=n1 exit=137 cause=its agent was killed by SIGKILL" in run.text
    assert run.summary() == "Status: FAILED (exit 137) — Training FAILED (exit=137)"
    (end,) = run.events("run-end")
    assert end["data"]["exit"] == 137  # type: ignore[index]


def test_r20_a_keeper_that_is_killed_ends_the_job_too(start: Callable[..., Run]) -> None:
    run = start()
    run.says("1: completed step: 2")
    os.kill(run.agents("n2")[0], signal.SIGKILL)
    assert run.ends() == "failed"
    assert "FIRST_FAILURE rank=1 host=n2 exit=137 cause=its agent's keeper was killed" in run.text
    assert "SUCCESS" not in run.text


def test_r20_an_agent_killed_before_training_is_not_waited_for(start: Callable[..., Run]) -> None:
    run = start()
    agent = run.cluster.wait_for(lambda: run.agents("n2")[1:], "the agent of n2")[0]
    os.kill(agent, signal.SIGKILL)
    assert run.ends() == "failed"
    assert "FATAL: n2: its agent was killed by SIGKILL" in run.text
    assert "SUCCESS" not in run.text


def test_r21_nothing_of_ours_outlives_the_job(start: Callable[..., Run], tmp_path: Path) -> None:
    opened = tmp_path / "held"
    opened.touch()
    run = start(DAEMON, steps=10, overrides={"OPENED": str(opened)})
    run.says("0: completed step: 2")
    assert holders(tmp_path), "the helper is there while the job runs"
    assert run.ends() == "completed"
    assert run.summary() == "Status: SUCCESS (exit 0)"
    run.cluster.wait_for(lambda: not holders(tmp_path), "nobody holds a file of the workspace open")


def holders(folder: Path) -> list[int]:
    """Processes besides this one with a file below the folder open, or that stand in it."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        links = []
        try:
            links = [f"/proc/{name}/cwd", *(f"/proc/{name}/fd/{fd}" for fd in os.listdir(f"/proc/{name}/fd"))]
            targets = [os.readlink(link) for link in links]
        except OSError:
            continue
        if int(name) != os.getpid() and any(target.startswith(str(folder)) for target in targets):
            found.append(int(name))
    return found


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "not-read"])
def test_r22_a_log_that_nobody_takes_stops_nothing(tmp_path: Path, closed: bool) -> None:
    chatty = STEPS + "\nfor line in range(4000): print('x' * 100, flush=True)\nprint('the end', flush=True)\n"
    submission = planned(tmp_path, chatty, nodes=1, steps=5, policy={"gpus": "off"})
    submission.write()
    (tmp_path / f"77-{submission.order.name}").mkdir()
    env = {**os.environ, "SLURM_JOB_ID": "77", "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}
    folder = submission.folder
    argv = [sys.executable, str(folder / "agent.pyz"), "node", str(folder / "order.json")]
    agent = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert agent.stdout is not None
    while b"completed step: 1" not in agent.stdout.readline():
        pass
    if closed:
        agent.stdout.close()
    assert agent.wait(90) == 0
    job_dir = tmp_path / f"77-{submission.order.name}"
    assert "the end" in (job_dir / "ranks" / "0.log").read_text(), "the rank's own log has every line"
    assert [e["data"]["exit"] for e in read(job_dir / "events.jsonl").items if e["kind"] == "run-end"] == [0]


def test_r24_a_failure_after_the_last_step_says_that_all_steps_were_done(start: Callable[..., Run]) -> None:
    run = start(TEARDOWN, steps=5)
    assert run.ends() == "failed"
    assert run.summary() == "Status: FAILED (exit 1) — Training FAILED (exit=1) after all 5 steps were completed"
    assert triage(resolve(run.id, run.dir.parent)).status == "soft-success"


def test_r25_one_dead_process_ends_its_siblings_here_and_elsewhere(start: Callable[..., Run]) -> None:
    run = start(procs=2)
    run.says("3: completed step: 2")
    state = json.loads((run.dir / "agent" / "n2.state.json").read_text())
    killed = time.time()
    os.kill(next(r["main"] for r in state["ranks"] if r["rank"] == 3), signal.SIGKILL)
    assert run.ends() == "failed"
    assert "FIRST_FAILURE rank=3 host=n2 exit=137" in run.text
    exits = {e["rank"]: (e["data"]["exit"], e["t"]) for e in run.events("rank-exit")}  # type: ignore[index]
    assert {rank: code for rank, (code, _) in exits.items()} == {0: 143, 1: 143, 2: 143, 3: 137}
    assert max(t for _, t in exits.values()) - killed < 10.0  # type: ignore[operator]


def test_a_crash_leaves_a_core_or_says_why_not(start: Callable[..., Run]) -> None:
    run = start(CRASH)
    assert run.ends(120) == "failed"
    assert "NODE_EXIT host=n2 exit=139" in run.text
    assert run.summary() == "Status: FAILED (exit 139) — Training FAILED (exit=139)"
    assert "[coredump] core_pattern=" in run.text
    if coredump.read_pattern().startswith(("|", "/")):
        assert "[coredump] no core of rank 1 on n2: " in run.text
        return
    (core,) = [p for p in run.dir.glob("core.*") if p.suffix != ".txt"]
    assert core.name.startswith(f"core.{run.id}.")
    assert ".1.n2." in core.name
    backtrace = core.with_name(core.name + ".txt")
    assert f"[coredump] {core.name}: " in run.text
    if backtrace.exists():
        assert "#0" in backtrace.read_text()
