"""The real MaxText through the launcher: `make test-maxtext` names this file, `make test` does not collect it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster, need_slurm

from trackwalker.job.journal import read
from trackwalker.launch.slurm.client import Slurm
from trackwalker.logs.scanning.index import index_logs

# On CPUs JAX gives a rank 30 s to come to the first collective, and that cannot be set: on a machine that is busy
# otherwise one rank may compile that much longer than the other.
LATE = "Gloo context initialization failed"
pytestmark = [pytest.mark.timeout(900), pytest.mark.flaky(reruns=1, only_rerun=[LATE])]
ROOT = Path(__file__).parents[2]
VENV = ROOT / ".maxtext-venv" / "bin"
MODEL = str(Path(__file__).with_name("mini.yml"))
STEPS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    need_slurm()
    with SlurmCluster(2) as cluster:
        yield cluster


def trackwalker(*words: str, python: Path | str = sys.executable, env: dict[str, str] | None = None) -> str:
    argv = [str(python), "-m", "trackwalker", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def verdict(job: Path) -> dict[str, Any]:
    return dict(json.loads(said("diagnose", job)))


def said(verb: str, job: Path) -> str:
    argv = [sys.executable, "-m", "trackwalker", verb, str(job), "--json"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False).stdout


def stored(job: Path, query: str) -> dict[str, float]:
    """rank to value, from the recording."""
    answer = json.loads(trackwalker("tsdb", "query", str(job), query, "--json"))
    return {row["labels"]["rank"]: float(row["points"][-1][1]) for row in answer["series"]}


def check_recorded(job: Path, ranks: int, steps: int = STEPS) -> None:
    """Everything that MaxText said is there once: by hook, in its own words, and in its event file."""
    records = read(job / "progress.jsonl").items
    done = [(r["rank"], r["step"]) for r in records if r["phase"] == "train"]
    assert sorted(done) == [(rank, step) for rank in range(ranks) for step in range(steps)]
    for record in (r for r in records if r["phase"] == "train"):
        assert record["mfu"] == pytest.approx(record["tflops"] / 0.1, abs=1e-5)
        assert record["seconds"] > 0
        assert 0 < record["loss"] < 20
    assert sorted(r["rank"] for r in records if r["phase"] == "done") == list(range(ranks))
    for rank in range(ranks):
        lines = (job / "ranks" / f"{rank}.log").read_text()
        assert lines.count("completed step: ") == steps, "its own step lines"
        assert "Memstats: After params initialized:" in lines
        assert "MFU" not in lines, "its stream is its own"
    assert index_logs(job / "log").facts.params_ranks == set(range(ranks)), "its memory lines"
    everyone = {str(rank): float(steps) for rank in range(ranks)}
    assert stored(job, "count_over_time(tb_learning_loss[30m])") == everyone
    assert stored(job, "count_over_time(train_mfu_ratio[30m])") == everyone
    # Only in the event file: the hook does not report it.
    assert stored(job, "count_over_time(tb_learning_current_learning_rate[30m])") == {"0": float(steps)}


def check_judged(job: Path) -> None:
    triaged = json.loads(said("triage", job))
    assert triaged["status"] == "completed"
    assert (triaged["progress"]["last_step"], triaged["progress"]["total_steps"]) == (STEPS - 1, STEPS)
    judged = verdict(job)
    assert (judged["status"], judged["outcome"]) == ("completed", "healthy"), judged


def test_one_process_here(tmp_path: Path, prometheus: Path) -> None:
    words = ["--observe", "--workspace", str(tmp_path), "--", f"steps={STEPS}"]
    trackwalker("run", MODEL, *words, python=VENV / "python")
    (job,) = tmp_path.glob("local_*/")
    check_recorded(job, 1)
    check_judged(job)


class Job:
    """A job on the cluster."""

    def __init__(self, cluster: SlurmCluster, workspace: Path, *words: str) -> None:
        python = ["--python", str(VENV / "python")]  # for MaxText and the agent; neither needs trackwalker there
        argv = ["submit", MODEL, "--observe", "--json", "--workspace", str(workspace), *python, *words]
        answer = json.loads(trackwalker(*argv, env=cluster.env))
        self.id, self.dir, self.log = answer["id"], Path(answer["dir"]), Path(answer["log"])
        self.cluster, self.slurm = cluster, Slurm(cluster.env)

    @property
    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def says(self, words: str, seconds: float) -> None:
        said = lambda: words in self.text  # noqa: E731
        self.cluster.wait_for(lambda: said() or self.slurm.state(self.id).ended, f"{words!r} in the log", seconds)
        assert said(), f"no {words!r} in the log:\n{self.text[-9000:]}"

    def ends(self, seconds: float) -> str:
        self.cluster.wait_for(lambda: self.slurm.state(self.id).ended, f"end of job {self.id}", seconds)
        self.cluster.wait_for(lambda: not self.cluster.leftovers(), "nothing left running", 30)
        return self.slurm.state(self.id).state


@pytest.fixture
def submit(cluster: SlurmCluster, tmp_path: Path) -> Callable[..., Job]:
    return lambda *words: Job(cluster, tmp_path, *words)


def test_two_nodes(submit: Callable[..., Job], prometheus: Path) -> None:
    job = submit("-N", "2", "--", f"steps={STEPS}", "jax_distributed_heartbeat_timeout_seconds=3600")
    assert job.ends(600) == "completed", job.text[-9000:]
    assert "Status: SUCCESS (exit 0)" in job.text
    for rank in range(2):
        met = f"[jax-preinit] nprocs=2 rank={rank} local_device=None heartbeat_timeout_s=3600 init_timeout_s=300"
        assert met in job.text
    check_recorded(job.dir, 2)
    check_judged(job.dir)


def test_one_process_per_device(submit: Callable[..., Job], prometheus: Path) -> None:
    profile = ["profiler=xplane", "upload_all_profiler_results=true", "skip_first_n_steps_for_profiler=4"]
    saves = ["enable_checkpointing=true", "async_checkpointing=true", "checkpoint_period=8"]
    words = [f"steps={STEPS}", *saves, *profile, "profiler_steps=2", "_env_ENABLE_XLA_DUMP=1"]
    job = submit("-N", "1", "--procs-per-node", "2", "--", *words)
    assert job.ends(600) == "completed", job.text[-9000:]
    for rank in range(2):
        met = f"[jax-preinit] nprocs=2 rank={rank} local_device={rank} heartbeat_timeout_s=14400 init_timeout_s=300"
        assert met in job.text
    check_recorded(job.dir, 2)
    output = job.dir.parent / "mini"  # shared by the runs of a model that keep checkpoints
    saved = sorted(int(p.name) for p in (output / "mini" / "checkpoints").iterdir() if p.name.isdigit())
    assert saved == [0, 8, 16, STEPS - 1]
    assert not list(output.rglob("*checkpoint-tmp*")), "the last save was complete before the processes left"
    traces = sorted(p.name.partition(".")[2] for p in output.rglob("*.xplane.pb"))
    assert traces == ["proc0.xplane.pb", "proc1.xplane.pb"]
    assert list((output / "xla_dump").glob("*jit_train_step*"))


def test_a_killed_rank_is_named(submit: Callable[..., Job], prometheus: Path) -> None:
    job = submit("-N", "2", "--", "steps=3000")
    job.says("completed step: 40,", 600)
    time.sleep(5)  # the wait is the subject: a few scrapes more, so that the recording has seen it well
    state = json.loads((job.dir / "agent" / "n2.state.json").read_text())
    os.kill(int(state["ranks"][0]["main"]), signal.SIGKILL)
    assert job.ends(180) == "failed"
    assert "FIRST_FAILURE rank=1 host=n2 exit=137 cause=killed by SIGKILL" in job.text
    triaged = json.loads(said("triage", job.dir))
    assert triaged["status"] == "failed"
    assert (triaged["first_failing"]["rank"], triaged["first_failing"]["host"]) == (1, "n2"), triaged
    judged = verdict(job.dir)
    assert judged["outcome"] == "incident"
    assert "n2" in json.dumps(judged["causes"][0]), judged


def test_cancel(submit: Callable[..., Job], cluster: SlurmCluster) -> None:
    job = submit("-N", "2", "--", "steps=3000")
    job.says("completed step: 3,", 600)
    began = time.monotonic()
    trackwalker("cancel", job.id, "--workspace", str(job.dir.parent), env=cluster.env)
    assert job.ends(120) == "cancelled"
    print(f"from cancel to the end: {time.monotonic() - began:.1f} s")
    assert "Status: FAILED (exit 143) — CANCELLED (scancel / SIGTERM)" in job.text
    assert json.loads(said("triage", job.dir))["status"] == "cancelled"
