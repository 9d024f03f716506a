"""Real runs with real faults: noticed live, diagnosed from the recording, nothing left behind.

Each run is made once and serves several tests. Those that do not judge the machine's speed are paced, and other
tests may run beside them. The other faults are in `test_injected_faults.py`.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from command_here import call_here
from paced_faults import paced
from processes import processes_of

from conftest import tree_hash
from trackwalker.diagnose.engine import diagnose
from trackwalker.job.journal import read
from trackwalker.job.resolve import resolve
from trackwalker.lab.real.cases import CASES
from trackwalker.lab.real.demo import DemoResult, run_demo
from trackwalker.telemetry.store import open_database

pytestmark = [
    pytest.mark.disturbed_by_load(reason="a fault is noticed by its real seconds, on a machine that may be busy"),
    pytest.mark.timeout(420),
]
# Beside other tests a healthy run is not healthy: its diagnosis rightly says that others take its CPU time.
alone = pytest.mark.alone
KILLED = pytest.mark.long(reason="four more ranks; a landing kills one and reads its verdict in test_watch_real.py")
FAULTS = [
    "stop",
    pytest.param("kill", marks=KILLED),
    pytest.param("none", marks=alone),
    pytest.param("cpu", marks=[alone, pytest.mark.long(reason="a minute with nothing beside it: it judges CPU time")]),
]
_made: dict[str, DemoResult] = {}


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def demo(fault: str, workspace: Path) -> DemoResult:
    if fault not in _made:
        case = CASES[fault]
        if fault == "none":  # its recording is looked at below
            case = replace(case, config={**case.config, "enable_tensorboard": "true"})
        case = case if fault == "cpu" else paced(case)
        _made[fault] = run_demo(case, workspace, lambda text: None, lambda watch: None)
    return _made[fault]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_verdict_names_what_was_done(fault: str, workspace: Path, prometheus: Path) -> None:
    result = demo(fault, workspace)
    verdict = result.diagnosis.verdict
    assert result.right, verdict.to_json()
    assert result.diagnosis.damage == []
    if fault == "none":
        assert result.notice is None
        assert verdict.status == "completed"
    else:
        assert result.notice is not None
        assert result.noticed_after_s is not None
        assert result.noticed_after_s < 60
    assert processes_of(result.job_dir) == []


@pytest.mark.parametrize("fault", ["stop", pytest.param("kill", marks=KILLED)])
def test_the_same_root_after_the_run_was_ended(fault: str, workspace: Path, prometheus: Path) -> None:
    result = demo(fault, workspace)
    after = diagnose(resolve(str(result.job_dir), workspace)).verdict
    assert [(c.cause, c.hosts) for c in after.roots] == [(c.cause, c.hosts) for c in result.diagnosis.verdict.roots]
    assert after.status == ("cancelled" if fault == "stop" else "failed")


def test_reading_changes_nothing(workspace: Path, prometheus: Path, tmp_path: Path) -> None:
    job = demo("stop", workspace).job_dir
    before = tree_hash(workspace)
    commands = [
        ["diagnose", str(job)],
        ["diagnose", str(job), "--json"],
        ["diagnose", str(job / "log"), "--html", str(tmp_path / "report.html"), "--exit-code"],
        ["jobs", "-w", str(workspace)],
        ["jobs", "-w", str(workspace), "--json"],
        ["triage", str(job), "--json"],
        ["triage", "--all", "-w", str(workspace)],
        ["tsdb", "list", "-w", str(workspace)],
        ["tsdb", "query", str(job), "hw_rank_up", "--json"],
        ["tsdb", "export", str(job), str(tmp_path / "samples.csv.gz"), "--metric", "hw_rank_.*"],
    ]
    for words in commands:
        done = call_here(os.environ, *words)
        assert done.returncode == (1 if "--exit-code" in words else 0), (words, done.stderr)
        assert tree_hash(workspace) == before, words
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_saving_writes_two_files_and_nothing_else(workspace: Path, prometheus: Path) -> None:
    job = demo("stop", workspace).job_dir
    names = {p.relative_to(job) for p in job.rglob("*")}
    done = call_here(os.environ, "diagnose", str(job), "--save")
    assert done.returncode == 0, done.stderr
    new = {p.relative_to(job) for p in job.rglob("*")} - names
    assert new == {Path("verdict.json"), Path("report.html")}
    assert json.loads((job / "verdict.json").read_text())["schema"] == "trackwalker.verdict/1"
    for name in new:
        (job / name).unlink()


@alone
def test_the_job_directory_is_complete(workspace: Path, prometheus: Path) -> None:
    job = demo("none", workspace).job_dir
    log = job.with_name(job.name + ".log").read_text()
    for rank in range(4):
        lines = (job / "ranks" / f"{rank}.log").read_text().splitlines()
        assert sum("completed step:" in line for line in lines) == 150
        assert all(line[:2] == "20" and line[23] == "Z" for line in lines), "every line is timestamped"
        assert log.count(f"\n{rank}: completed step:") == 150
    assert log.startswith("JOB_ID=local_")
    assert "Status: SUCCESS (exit 0)" in log
    progress = [r for r in read(job / "progress.jsonl").items if r.get("phase") == "train"]
    assert len(progress) == 600
    kinds = [e["kind"] for e in read(job / "events.jsonl").items]
    assert kinds[0] == "stage-begin"
    assert kinds[-1] == "run-end"
    record = json.loads((job / "run.json").read_text())
    assert record["schema"] == "trackwalker.run/1"
    assert [r["host"] for r in record["ranks"]] == [f"{os.uname().nodename.split('.')[0]}-r{n}" for n in range(4)]
    assert not list((job / "ranks").glob("*.out"))


@alone
def test_the_recording_holds_every_lane_every_second(workspace: Path, prometheus: Path) -> None:
    job = demo("none", workspace).job_dir
    with open_database(job / "prometheus") as telemetry:
        begin, end = telemetry.range()
        counts = telemetry.by_host(f"count by (host) (count_over_time(hw_rank_up[{end - begin:.0f}s]))", end)
        assert len(counts) == 4
        for labels, moments, _ in telemetry.raw("hw_rank_up", begin, end):  # a lane begins when its rank does
            assert len(moments) >= 0.9 * (moments[-1] - moments[0]), labels
            assert moments[-1] - moments[0] > 0.5 * (end - begin)
        for metric in (
            "hw_tcp_retransmits_total",
            "hw_cpu_pressure_some_pct",
            "hw_mem_available_bytes",
            "tb_learning_loss",
        ):
            assert metric in telemetry.metrics()
