"""The owner's policy on a real Slurm: a run goes on without a node that was lost; a crash loop ends at the budget."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_here import call_here
from slurm_cluster import SlurmCluster, need_slurm
from slurm_run import submit_program
from tiny_settings import PACED

from trackwalker.diagnose.triage import triage
from trackwalker.job.journal import read
from trackwalker.job.resolve import resolve
from trackwalker.job.run import load_run
from trackwalker.launch.job_state import find_job
from trackwalker.launch.slurm.client import Slurm
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.watch.detect import capsule

# As MaxText says a step, and then a bad address.
CRASHES = """
import os
print("Config param steps:", 8, flush=True)
print("completed step: 0, seconds: 0.100, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0", flush=True)
os.kill(os.getpid(), 11)
"""
pytestmark = [
    pytest.mark.disturbed_by_load(reason="a node is given up after real seconds, a run must have stepped by then"),
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    need_slurm()
    with SlurmCluster(3, slurmd_timeout=5) as cluster:
        yield cluster


def policy(folder: Path, **section: Any) -> str:
    path = folder / "watch.yml"
    path.write_text(json.dumps({"channels": {}, "resume": section}))
    return str(path)


def cli(cluster: SlurmCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return call_here(cluster.env, *words)


def submitted(cluster: SlurmCluster, workspace: Path, *words: str) -> tuple[str, Path, Path]:
    done = cli(cluster, "submit", "tiny", "--json", "--workspace", str(workspace), *words)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["id"], Path(answer["dir"]), Path(answer["log"])


def decisions(job_dir: Path) -> list[dict[str, Any]]:
    return [event["data"] for event in read(job_dir / "events.jsonl").items if event["kind"] == "supervise"]


def test_a_crash_loop_stops_at_the_budget_and_a_dry_run_does_nothing(cluster: SlurmCluster, tmp_path: Path) -> None:
    # The only rank crashes the same way each time.
    queued = submit_program(cluster, tmp_path, CRASHES, SubmitOptions(nodes=1, requeue=True), auto_resume=9)
    job, job_dir = queued.id, queued.job_dir
    dry = policy(tmp_path, dry_run=True, classes={"crash": {"times": 9}})
    looked = cli(cluster, "wait", job, "--auto-resume", "--policy", dry, "--workspace", str(tmp_path))
    assert looked.returncode != 0
    assert "dry run, nothing is started: another attempt" in looked.stderr
    assert Slurm(cluster.env).state(job).ended
    record = load_run(job_dir / "run.json")
    assert record is not None
    assert record.attempts == []
    loop = policy(tmp_path, budget=1, without_progress=9, classes={"crash": {"times": 9}})
    done = cli(cluster, "wait", job, "--auto-resume", "--policy", loop, "--workspace", str(tmp_path))
    assert done.returncode != 0
    record = load_run(job_dir / "run.json")
    assert record is not None
    assert len(record.attempts) == 1, done.stderr
    told = decisions(job_dir)
    assert [(said["resume"], said["dry_run"]) for said in told] == [
        (True, True),
        (True, False),
        (False, False),
    ]  # fmt: skip
    assert "all 1 further attempts are used up" in told[-1]["why"]
    begins = [e for e in read(job_dir / "events.jsonl").items if e["kind"] == "attempt-begin"]
    assert len(begins) == 2, "never more than the policy says"


def test_a_node_is_lost_and_the_watcher_lets_the_run_go_on_from_its_checkpoint_without_it(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    settings = [*PACED, "steps=100000", "checkpoint_period=5"]
    job, job_dir, log = submitted(cluster, tmp_path, "-N", "2", "--", *settings)
    allowed = policy(tmp_path, jobs="all", budget=1, most_excluded=1)
    argv = ["watch", "--all", "--json", "--config", allowed, "--workspace", str(tmp_path)]
    out = tmp_path / "watch.out"
    with out.open("wb") as place:
        watcher = subprocess.Popen([sys.executable, "-m", "trackwalker", *argv], env=cluster.env, stdout=place)
    try:
        saved = lambda: log.exists() and "Saved a checkpoint at step" in log.read_text()  # noqa: E731
        cluster.wait_for(saved, "a checkpoint", 90)
        _look_at_all_nodes(job_dir, tmp_path)
        cluster.kill_node("n2")
        cluster.wait_for(lambda: decisions(job_dir), "a decision", 60)
        (said,) = decisions(job_dir)
        assert said["resume"], said
        assert said["exclude"] == ["n2"], said
        assert said["started"]
        assert said["checkpoint"] >= 5
        assert "SUCCESS" not in log.read_text()
        assert triage(resolve(job, tmp_path)).status in ("failed", "cancelled", "unknown-death")
        assert Slurm(cluster.env).state(job).state in ("node-fail", "failed")
        assert said["started"] != job, "Slurm was not asked to repeat it, so it goes on as a new job"
        again = tmp_path / f"{said['started']}-JAX-tiny.log"
        text = lambda: again.read_text() if again.exists() else ""  # noqa: E731
        cluster.wait_for(lambda: "restoring from this run's directory step" in text(), "a restored checkpoint", 90)
        cluster.wait_for(lambda: "completed step: " in text().rpartition("restoring from")[2], "further steps", 60)
        record = load_run(again.with_suffix("") / "run.json")
        assert record is not None
        assert record.resumed_from == job
        assert [place.host for place in record.ranks] == ["n1", "n3"]
        assert [attempt["checkpoint"] for attempt in record.attempts] == [said["checkpoint"]]
        told = [message for line in out.read_text().splitlines() if (message := json.loads(line))["kind"] == "resume"]
        assert [message["job"] for message in told] == [job]
        assert "another attempt without n2 from the checkpoint of step" in told[0]["title"]
    finally:
        watcher.kill()
        watcher.wait()
        cluster.restart_node("n2")
        cluster.cancel_all()


def _look_at_all_nodes(job_dir: Path, workspace: Path) -> None:
    here = find_job(str(job_dir), workspace)
    capsule.request(here, "look-1", pause=False)
    taken = capsule.wait(here, "look-1")
    assert taken is not None
    assert (taken.nodes, taken.missing) == (("n1", "n2"), ()), "every node's agent answers into one folder"
    assert [bool(stack.frames) for stack in taken.stacks] == [True, True]
    assert taken.odd == [], "a run that goes on has no odd rank"
