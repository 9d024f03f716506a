"""The simulator in our own format against a real recorded run, and the same diagnosis of both formats."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import end_runs
from tiny_settings import SMALL

from conftest import tree_hash
from trackwalker.diagnose.engine import diagnose
from trackwalker.job.journal import read
from trackwalker.job.resolve import resolve
from trackwalker.lab.real.inject import find_victim
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.simulate import simulate
from trackwalker.telemetry.store import open_database

pytestmark = [
    pytest.mark.timeout(300),
]

# What a scenario says nothing about, so that the simulator keeps quiet: the agent's own health and probes, the parts
# of the machine that no fault touches, what Prometheus computes by itself.
NOT_SIMULATED = re.compile(
    r"ALERTS.*|.*:.*|scrape_.*|hw_collector_.*|hw_fs_.*|hw_kmsg_.*|hw_(cpu|memory)_pressure_.*"
    r"|hw_io_pressure_\w+_(avg300_pct|total_us)|hw_cpu_wait_seconds_total|hw_rank_tcp_.*|tb_bridge_.*"
    r"|hw_net_(up|carrier_changes_total|tx_drop_total)|hw_disk_.*|hw_nfs_.*|hw_(node|foreign)_cpu.*"
)
STAMPED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
# The words of the launcher and the agent in the merged log; the rest is what ranks print.
FORMS = (
    r"JOB_ID=\S+", r"JOB_NAME=JAX-\S+", r"NNODES=\d+", r"JOB_NODELIST=\S+", r'PASSTHROUGH_ARGS=".*"', r"MODEL_NAME=\S+",
    r"=== GIT SUMMARY BEGIN ===", r"=== GIT SUMMARY END ===", r"== Training BEGIN \(no timeout\) ==",
    r" *\d+: completed step: \d+, seconds: [\d.]+, TFLOP/s/device: [\d.]+, .*Tokens/s/device: [\d.]+, .*loss: [\d.]+",
    r" *\d+: NODE_EXIT host=\S+ exit=\d+", r"FIRST_FAILURE rank=\d+ host=\S+ exit=\d+ cause=killed by SIG\w+",
    r"== Training FAILED \(exit=\d+, \d+s\) ==", r"=+ JOB SUMMARY =+", r"  Job:    \S+ \(JAX-\S+\)", r"  Model:  \S+",
    r"  Nodes:  \d+", r"  Wall:   [\dhms ]+", r"  Status: FAILED \(exit \d+\) — Training FAILED \(exit=\d+\)", r"={65}",
)  # fmt: skip


@dataclass
class Job:
    """A job directory and what its database holds: metric -> the names of its labels."""

    dir: Path
    metrics: dict[str, set[str]]

    @property
    def log(self) -> list[str]:
        return (self.dir / "log").read_text().splitlines()

    def journal(self, name: str) -> list[dict[str, Any]]:
        held = read(self.dir / name)
        assert held.damaged == 0
        return held.items


def look(folder: Path) -> Job:
    job = resolve(str(folder), folder.parent)
    assert job.database is not None
    with open_database(job.database) as database:
        start, end = database.range()
        found = {}
        for name in database.metrics():
            labels, _, _ = next(iter(database.raw(name, start, end)))
            found[name] = set(labels) - {"__name__"}
    return Job(folder, found)


TWO_SCRAPES_S = 12.0


def killed_run(workspace: Path) -> Path:
    """A real recorded run of four processes, as a user starts it, of which one is killed after some steps.

    Not paced: the others must be in a collective when it dies, as in the simulated run.
    """
    words = ["run", "tiny", "-n", "4", "--observe", "-w", str(workspace)]
    words += ["--", "steps=100000", "checkpoint_period=10", *SMALL]
    with (workspace / "out").open("w") as out:
        command = subprocess.Popen([sys.executable, "-m", "trackwalker", *words], stdout=out, stderr=out)
    try:
        deadline, first = time.monotonic() + 200, 0.0
        while time.monotonic() < deadline:
            found = list(workspace.glob("local_*/progress.jsonl"))
            first = first or (time.monotonic() if found else 0.0)
            scraped = found and time.monotonic() - first >= TWO_SCRAPES_S  # a quick machine needs less for the steps
            if scraped and any(record.get("step", 0) >= 30 for record in read(found[0]).items):
                break
            time.sleep(0.1)
        (job_dir,) = (path.parent for path in found)
        os.kill(find_victim(job_dir, 2).pid, signal.SIGKILL)
        assert command.wait(60) == 128 + signal.SIGKILL
    finally:
        command.kill()
        command.wait()
        end_runs(workspace)
    return job_dir


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> tuple[Job, Job]:
    """The real run, and a simulated one in which a process died."""
    real = killed_run(tmp_path_factory.mktemp("real"))
    scenario = load_scenario("segfault")
    scenario.world |= {"nodes": 4, "gpus": 2, "checkpoint_period": 40}
    made = simulate(scenario, tmp_path_factory.mktemp("made") / "case", form="ours")
    return look(real), look(made.job)


def test_the_same_files(pair: tuple[Job, Job]) -> None:
    def evidence(job: Job) -> set[str]:
        names = {str(p.relative_to(job.dir)) for p in job.dir.rglob("*") if p.is_file()}
        # Working files of the agent and the recorder, the trainer's own output, what the trainer was told, and
        # the stacks of ranks that outlived the dead one: whether any did depends on the machine.
        own = re.compile(r"agent/|services/|prometheus/|tiny|config\.yml|stacks/")
        return {name for name in names if not own.match(name)}

    real, made = pair
    assert evidence(made) == evidence(real)
    assert {f"ranks/{rank}.log" for rank in range(4)} < evidence(made)


def test_the_same_records(pair: tuple[Job, Job]) -> None:
    def shape(value: Any) -> Any:
        return sorted(value) if isinstance(value, dict) else type(value).__name__

    records = [json.loads((job.dir / "run.json").read_text()) for job in pair]
    assert list(records[0]) == list(records[1])
    for name in ("config", "env"):
        assert all(sorted(held) == ["source", "value"] for r in records for held in r[name].values())
    assert shape(records[0]["ranks"][0]) == shape(records[1]["ranks"][0])

    real, made = ({e["kind"]: e for e in job.journal("events.jsonl")} for job in pair)
    assert set(real) - set(made) - {"capsule"} == set(), "a capsule is made of the ranks that outlived the dead one"
    for kind in set(real) & set(made):
        assert list(real[kind]) == list(made[kind]), kind
        assert {k: shape(v) for k, v in real[kind]["data"].items()} == {
            k: shape(v) for k, v in made[kind]["data"].items()
        }, kind

    steps = [{(p["phase"], p.get("state")): p for p in job.journal("progress.jsonl")} for job in pair]
    for phase in set(steps[0]) & set(steps[1]):
        # The tiny trainer knows no peak of its device, so that it has no share of it to report.
        assert set(steps[0][phase]) == set(steps[1][phase]) - {"mfu", "restored"}, phase
    assert {("train", None), ("init", "begin"), ("compile", "end")} <= set(steps[0]) & set(steps[1])


def test_the_same_forms_of_lines(pair: tuple[Job, Job]) -> None:
    for form in FORMS:
        found = [any(re.fullmatch(form, line) for line in job.log) for job in pair]
        assert found == [True, True], form
    ends = [[re.sub(r"\d+", "0", line) for line in job.log if "FIRST_FAILURE" in line] for job in pair]
    assert [len(lines) for lines in ends] == [1, 1]
    for job in pair:
        for own in (job.dir / "ranks").glob("*.log"):
            assert all(STAMPED.match(line) for line in own.read_text().splitlines()), own


def test_the_same_metrics(pair: tuple[Job, Job]) -> None:
    real, made = pair
    assert sorted(m for m in set(real.metrics) - set(made.metrics) if not NOT_SIMULATED.fullmatch(m)) == []
    for metric in sorted(set(real.metrics) & set(made.metrics)):
        if metric != "hw_node_info":  # says more of a node that has GPUs
            assert real.metrics[metric] == made.metrics[metric], metric
    assert not any(m.startswith("ray_") for m in made.metrics), "there is no Ray beside our runs unless asked for"


more = pytest.mark.long(reason="two worlds each; a landing keeps one family per source: series, log, journal, none")


@pytest.mark.parametrize(
    "family",
    [
        "gpu-thermal-throttle",
        pytest.param("rdma-from-start", marks=more),
        pytest.param("input-stall", marks=more),
        "host-oom-at-save",
        pytest.param("segfault", marks=more),
        "node-death",
        pytest.param("preflight-ipv6-rules", marks=more),
        "healthy-plain",
    ],
)
def test_the_same_root_in_both_formats(family: str, tmp_path: Path, prometheus: Path) -> None:
    said = []
    for form in ("upstream", "ours"):
        scenario = load_scenario(family)
        scenario.world |= {"nodes": 4, "gpus": 2}
        made = simulate(scenario, tmp_path / form, seed=2, form=form)  # type: ignore[arg-type]
        verdict = diagnose(resolve(str(made.job), made.workspace)).verdict
        graded = grade(json.loads(verdict.to_json()), made.truth)
        assert graded.passed, (form, graded)
        said.append((verdict.outcome, [(cause.cause, cause.hosts) for cause in verdict.roots]))
    assert said[0] == said[1]


def test_the_same_bytes_again(tmp_path: Path) -> None:
    scenario = load_scenario("cpu-contention")
    scenario.world |= {"nodes": 2, "gpus": 1, "steps": 40}
    hashes = [tree_hash(simulate(scenario, tmp_path / name, seed=3, form="ours").workspace) for name in ("a", "b")]
    assert hashes[0] == hashes[1]
