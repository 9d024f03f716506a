"""Every way to start a run, with one and with several processes on a node, recorded and not: each ends in one summary.

The trainer is a stand-in that is there in milliseconds; Slurm, agents, recorder and Prometheus are real. For Kubernetes
the manifest's own argument list and environment are started here, one process for each pod.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster

from trackwalker.diagnose.triage import triage
from trackwalker.job.journal import read
from trackwalker.job.resolve import resolve
from trackwalker.launch.here import RunByHand, place_by_hand
from trackwalker.launch.kubernetes.client import Answer
from trackwalker.launch.kubernetes.settings import read_settings
from trackwalker.launch.plan import new_local_id, plan_local
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.request.words import parse_model_spec, parse_passthrough
from trackwalker.launch.schedulers import kubernetes, slurm
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.submission import How, Submission, plan_submission

pytestmark = [pytest.mark.timeout(180)]
NODES, STEPS = 2, 3
STALE = "192.0.2.7"  # a coordinator of yesterday's, left in the shell
SECRET = "hush-hush-0123456789"  # noqa: S105
LONG = "run_name=" + "x" * 300
WORDS = [LONG, f"_env_HF_TOKEN={SECRET}", "_env_ODD=a b'\"$(HOME) %j é"]
TRAINER = """
import json, os, sys, time
rank = os.environ.get("GLOBAL_RANK") or os.environ["NODE_RANK"]
print("Config param steps: 3", flush=True)
here = os.path.join(os.environ["JOB_WORKSPACE"], os.environ["JOB_DIR"])
with open(os.path.join(here, "seen-" + rank), "w") as f:
    seen = {k: v for k, v in os.environ.items() if k != "HF_TOKEN"}
    json.dump({"argv": sys.argv, "env": seen, "secret": len(os.environ["HF_TOKEN"])}, f)
wait = os.path.join(here, "wait")
if FAILS:
    time.sleep(0.5)  # the wait is the subject: the other ranks are up when one fails
    sys.exit(7) if rank == FAILS else time.sleep(60)
if rank == "0" and PAUSE:
    open(wait, "x").close()
for step in range(3):
    print(f"completed step: {step}, seconds: 0.050, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0", flush=True)
    time.sleep(0.05)
    while os.path.exists(wait):
        time.sleep(0.02)
"""


@dataclass
class Started:
    """A run under way, whoever started it."""

    id: str
    dir: Path
    log: Path
    wait: Callable[[], int]  # until all of it has ended: the exit code

    @property
    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@dataclass(frozen=True)
class Cell:
    """What is asked of an entry."""

    workspace: Path
    procs: int
    observe: bool
    services: dict[str, list[str]] | None = None
    gpus: int = 0  # that every node must have
    python: str = sys.executable
    fails: str = ""  # the rank that ends badly
    pause: bool = False  # the first rank waits after its first step until the test lets it go
    cluster: SlurmCluster | None = None

    @property
    def code(self) -> str:
        """The trainer's program."""
        return f"PAUSE, FAILS = {self.pause}, {self.fails!r}\n{TRAINER}"

    def submission(self, scheduler: str) -> Submission:
        """The run as a cluster is given it, with the stand-in as its trainer."""
        asked = Asked("tiny:exp", WORDS, nodes=NODES, workspace=self.workspace)
        how = How(scheduler, ["submit", "tiny:exp"], procs=self.procs, observe=self.observe)
        planned = plan_submission(asked, how)
        trainer = [sys.executable, "-c", self.code]
        order = dataclasses.replace(planned.order, argv=trainer, output=None, expected_gpus=self.gpus)
        if self.services is not None:
            order = dataclasses.replace(order, services=self.services)
        return dataclasses.replace(planned, order=order)


def on_slurm(cell: Cell) -> Started:
    assert cell.cluster is not None
    client = Slurm({**cell.cluster.env, "JAX_COORDINATOR_IP": STALE, "NNODES": "99"})
    batch = slurm.plan_batch(cell.submission("slurm"), SubmitOptions(nodes=NODES), client, cell.python)
    queued = slurm.submit(batch, client)
    cluster = cell.cluster

    def wait() -> int:
        cluster.wait_for(lambda: client.state(queued.id).ended, f"end of job {queued.id}", 90)
        return client.state(queued.id).exit or 0

    return Started(queued.id, queued.job_dir, queued.log, wait)


def on_kubernetes(cell: Cell) -> Started:
    settings = read_settings(["-N2"], {"K8S_PVC_NAME": "shared", "K8S_PVC_MOUNT": str(cell.workspace)})
    submission = cell.submission("kubernetes")
    batch = kubernetes.plan_pod_batch(submission, settings, "image", cell.workspace, python=cell.python)
    taken = Answer(0, json.dumps({"metadata": {"uid": "1"}}), "")
    job = kubernetes.submit(batch, run=lambda argv, text: taken)
    items = json.loads(job.manifest.read_text())["items"]
    spec: dict[str, Any] = next(item for item in items if item["kind"] == "Job")["spec"]
    container = spec["template"]["spec"]["containers"][0]
    env = {v["name"]: v["value"].replace("$$", "$") for v in container["env"] if "value" in v}
    env |= {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ}
    argv = [word.replace("$$", "$") for word in container["command"]]
    pods = [
        subprocess.Popen(
            argv,
            env={**env, "JAX_COORDINATOR_IP": STALE, "JOB_COMPLETION_INDEX": str(n), "NODE_NAME": f"m{n}"},
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        for n in range(spec["completions"])
    ]
    return Started(job.id, job.job_dir, job.log, lambda: max(pod.wait(90) for pod in pods))


def on_this_machine(cell: Cell) -> Started:
    spec, words = parse_model_spec("tiny:exp"), parse_passthrough(WORDS)
    plan = plan_local(spec, words, cell.workspace, How("local", ["run", "tiny:exp"], cell.procs, cell.observe))
    argv = [sys.executable, "-c", cell.code, LONG]
    ranks = [dataclasses.replace(rank, argv=argv) for rank in plan.agent.ranks]
    run = LocalRun.start(dataclasses.replace(plan, agent=dataclasses.replace(plan.agent, ranks=ranks)))

    def wait() -> int:
        deadline = time.monotonic() + 90
        while (code := run.supervise()) is None:
            assert time.monotonic() < deadline, plan.log.read_text()[-2000:]
            time.sleep(0.05)
        run.wait_closed()
        return code

    return Started(plan.record.id, run.job_dir, plan.log, wait)


def in_the_container(cell: Cell) -> Started:
    """Two nodes that somebody started by hand inside their image, as `run --in-container` does."""
    job_id = new_local_id(time.time())
    nodes = []
    for rank in reversed(range(NODES)):  # whoever comes first waits
        place = place_by_hand({"JOB_ID": job_id, "NNODES": str(NODES), "NODE_RANK": str(rank)})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRACKWALKER_NODE", f"box{rank}")
            nodes.append(RunByHand(cell.submission("local"), place))
    head = nodes[-1]

    def wait() -> int:
        deadline = time.monotonic() + 90
        while any(node.supervise() is None for node in nodes):
            assert time.monotonic() < deadline, head.log.read_text()[-2000:]
            time.sleep(0.05)
        return max(node.supervise() or 0 for node in nodes)

    return Started(job_id, head.job_dir, head.log, wait)


ENTRIES = {
    "slurm": on_slurm,
    "kubernetes": on_kubernetes,
    "local": on_this_machine,
    "in-container": in_the_container,
}


@pytest.fixture
def begin(
    slurm_session: SlurmCluster, tmp_path: Path, prometheus: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Started]]:
    """Starts a run; nothing of it is left behind the test, however it ended."""
    monkeypatch.setenv("JAX_COORDINATOR_IP", STALE)
    for name in ("RAY", "NNODES", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    runs: list[Started] = []

    def begin(entry: str, procs: int = 1, observe: bool = False, **more: Any) -> Started:
        if entry == "slurm":
            slurm_session.wait_idle(60)
        runs.append(ENTRIES[entry](Cell(tmp_path, procs, observe, cluster=slurm_session, **more)))
        return runs[-1]

    yield begin
    slurm_session.cancel_all()
    for pid in [pid for run in runs for pid in processes_of(run.dir)]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def processes_of(job_dir: Path) -> list[int]:
    """Live processes that name a job's directory in their environment or their words."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
            dead = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if job_dir.name.encode() in told and not dead and int(name) != os.getpid():
                found.append(int(name))
    return found


def until(happened: Callable[[], object], run: Started) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline, run.text[-3000:]
        time.sleep(0.05)


def nobody_is_left(run: Started) -> None:
    deadline = time.monotonic() + 20
    while left := processes_of(run.dir):
        assert time.monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        time.sleep(0.1)


def cells() -> list[Any]:
    """Every entry plain with one process and observed with several; the other two combinations can wait."""
    later = pytest.mark.long(reason="the other half of the matrix: each entry, count and recorder is met without it")
    made = []
    for entry, procs, observe in itertools.product(ENTRIES, [1, 2], [False, True]):
        name = f"{entry}-{'several' if procs > 1 else 'one'}-{'observed' if observe else 'plain'}"
        made.append(pytest.param(entry, procs, observe, id=name, marks=[] if observe == (procs > 1) else [later]))
    return made


@pytest.mark.parametrize(("entry", "procs", "observe"), cells())
def test_r40_every_cell_runs_to_its_summary(
    begin: Callable[..., Started], entry: str, procs: int, observe: bool
) -> None:
    run = begin(entry, procs, observe, pause=observe)
    if observe:  # the recorder is up later than a trainer that needs no time to start
        until(lambda: (run.dir / "wait").exists() and resolve(run.id, run.dir.parent).database, run)
        (run.dir / "wait").unlink()
    assert run.wait() == 0, run.text[-3000:]
    text, world = run.text, procs if entry == "local" else NODES * procs
    assert text.count(" JOB SUMMARY ") == 1
    assert "  Status: SUCCESS (exit 0)\n" in text
    steps = sorted((r["rank"], r["step"]) for r in read(run.dir / "progress.jsonl").items)
    assert steps == [(rank, step) for rank in range(world) for step in range(STEPS)]
    assert triage(resolve(run.id, run.dir.parent)).status == "completed"
    _saw_what_was_asked(run, world)
    holding = {
        path.name for path in run.dir.parent.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    }
    assert holding <= {"order.json", "spec.json"}, "r06: a secret stands in the agents' order only"
    assert (resolve(run.id, run.dir.parent).database is not None) == observe
    nobody_is_left(run)


def _saw_what_was_asked(run: Started, world: int) -> None:
    seen = [json.loads((run.dir / f"seen-{rank}").read_text()) for rank in range(world)]
    assert all(LONG in s["argv"] and s["secret"] == len(SECRET) for s in seen)
    assert all(s["env"]["ODD"] == "a b'\"$(HOME) %j é" for s in seen)
    meeting = {s["env"].get("JAX_COORDINATOR_IP") for s in seen}
    assert STALE not in meeting
    assert len(meeting) == 1
    assert (None in meeting) == (world == 1)


@pytest.mark.parametrize("entry", ["slurm", "kubernetes"])
def test_r39_services_that_cannot_start_or_die_stop_nobody(begin: Callable[..., Started], entry: str) -> None:
    broken = {"recorder": ["/nonexistent/program"], "ray": [sys.executable, "-c", "raise SystemExit(3)"]}
    run = begin(entry, services=broken)
    assert run.wait() == 0, run.text[-3000:]
    assert "SUCCESS (exit 0)" in run.text
    nobody_is_left(run)


def test_r39_a_recorder_without_prometheus_stops_nobody(
    begin: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKWALKER_PROMETHEUS", "/nonexistent/prometheus")
    run = begin("local", 2, True)
    assert run.wait() == 0, run.text[-3000:]
    assert "SUCCESS (exit 0)" in run.text
    nobody_is_left(run)


@pytest.mark.parametrize("entry", ENTRIES)
def test_r42_one_summary_and_it_follows_a_renamed_log(begin: Callable[..., Started], entry: str) -> None:
    run = begin(entry, pause=True)
    until(lambda: "0: completed step: 0" in run.text or "\ncompleted step: 0" in run.text, run)
    moved = run.log.rename(run.log.with_name(run.log.stem + "-TGS_9.log"))
    (run.dir / "wait").unlink()
    assert run.wait() == 0
    assert not run.log.exists() or "JOB SUMMARY" not in run.log.read_text()
    text = moved.read_text()
    assert text.count(" JOB SUMMARY ") == 1
    assert "SUCCESS (exit 0)" in text
    assert "completed step: 2" in text
    nobody_is_left(run)


@pytest.mark.parametrize("entry", ENTRIES)
def test_r23_the_first_failing_rank_is_named_and_its_code_is_the_jobs(
    begin: Callable[..., Started], entry: str
) -> None:
    run = begin(entry, 2, fails="1")
    assert run.wait() == 7, run.text[-3000:]
    assert "FIRST_FAILURE rank=1 host=" in run.text
    assert "  Status: FAILED (exit 7) — Training FAILED (exit=7)\n" in run.text
    exits = {e["rank"]: e["data"]["exit"] for e in read(run.dir / "events.jsonl").items if e["kind"] == "rank-exit"}
    others = range(2 if entry == "local" else NODES * 2)
    assert exits == {rank: 7 if rank == 1 else 143 for rank in others}, "the others were told to end"
    nobody_is_left(run)


@pytest.mark.parametrize("entry", ["slurm", "kubernetes"])
def test_a_check_that_fails_ends_the_job_and_triage_names_it(begin: Callable[..., Started], entry: str) -> None:
    run = begin(entry, gpus=63)
    assert run.wait() == 1
    assert run.text.count(" JOB SUMMARY ") == 1
    assert "— Preflight FAILED (exit=1)\n" in run.text
    found = triage(resolve(run.id, run.dir.parent)).primary
    assert found is not None, run.text
    assert found.cause == "no-gpu"
    texts = [run.text, *(path.read_text() for path in run.dir.glob("rank-*.log"))]
    assert any(f"FATAL: {found.host} | [CHECK_GPUS]" in text for text in texts)
    nobody_is_left(run)


def oldest_python() -> str:
    """A Python 3.9 on this machine, empty when there is none."""
    beside = Path(sys.base_prefix).parent.glob("3.9*/bin/python3.9")  # as pyenv lays them out
    for python in [shutil.which("python3.9"), *map(str, beside)]:
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return ""


@pytest.mark.parametrize("entry", ["slurm", "kubernetes"])
def test_the_agent_runs_on_the_oldest_python_it_promises(begin: Callable[..., Started], entry: str) -> None:
    python = oldest_python()
    if not python:
        pytest.skip("there is no Python 3.9 here: pyenv install 3.9, or uv python install 3.9")
    run = begin(entry, 2, python=python)
    assert run.wait() == 0, run.text[-3000:]
    assert "SUCCESS (exit 0)" in run.text
