"""Where a job stands, and how it is ended: local runs with real processes, jobs without a log, a Slurm that forgot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import write_lines

from trackwalker.cli import app
from trackwalker.job.journal import open_at_last
from trackwalker.job.processes import read_stat
from trackwalker.job.run import Origin, RunRecord
from trackwalker.launch.job_state import find_job, standing, standings, submitted
from trackwalker.launch.slurm.client import Slurm

LOCAL = "local_20261115_093000_ab12"


def make(
    workspace: Path, job: str = LOCAL, scheduler: str = "local", log: str | None = "0: one\n1: two\n0: three\n"
) -> Path:
    folder = workspace / f"{job}-JAX-x"
    (folder / "agent").mkdir(parents=True)
    (folder / "log").symlink_to(f"../{folder.name}.log")
    if log is not None:
        (workspace / f"{folder.name}.log").write_text(log)
    RunRecord(
        id=job,
        name="JAX-x",
        model="x",
        scheduler=scheduler,
        trainer="tiny",
        created=0,
        argv=[],
        command=[],
        workspace=str(workspace),
        origin=Origin(machine=os.uname().nodename, user="ann"),
    ).save(folder / "run.json")
    return folder


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that the job's state names as its agent."""
    process = subprocess.Popen(["sleep", "60"])
    folder = make(tmp_path)
    stat = read_stat(process.pid)
    assert stat is not None
    state = {"agent": {"pid": process.pid, "start": stat.start}, "ranks": []}
    (folder / "agent" / "state.json").write_text(json.dumps(state))
    yield process
    process.kill()
    process.wait()


def call(monkeypatch: pytest.MonkeyPatch, workspace: Path, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["trackwalker", *words, "--workspace", str(workspace)])
    with pytest.raises(SystemExit) as end:
        app.main()
    return int(end.value.code or 0)


@pytest.mark.starts_processes
def test_cancel_ends_the_agent_of_a_local_run(
    agent: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, tmp_path, "status", LOCAL) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"job {LOCAL} runs on {os.uname().nodename}"
    assert call(monkeypatch, tmp_path, "cancel", "local_2026") == 2  # a prefix is enough to read, not to end
    assert "not the whole id" in capsys.readouterr().err
    assert agent.poll() is None
    assert call(monkeypatch, tmp_path, "cancel", LOCAL) == 0
    assert agent.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("exit_code", "reason", "state"),
    [
        (0, "", "completed"),
        (139, "Training FAILED (exit=139)", "failed"),
        (143, "CANCELLED (scancel / SIGTERM)", "cancelled"),
    ],
)
def test_wait_ends_with_the_exit_code_of_the_run(
    exit_code: int,
    reason: str,
    state: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = make(tmp_path)
    write_lines(folder / "events.jsonl", [{"kind": "run-end", "data": {"exit": exit_code, "reason": reason}}])
    assert call(monkeypatch, tmp_path, "wait", LOCAL, "--json") == exit_code
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["state"], said["code"]) == ("trackwalker.wait/1", state, exit_code)


def test_a_run_that_nobody_saw_end_is_lost_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    seen = standing(find_job(LOCAL, tmp_path))
    assert (seen.state, seen.ended, seen.exit) == ("lost", True, None)
    assert call(monkeypatch, tmp_path, "wait", LOCAL) == 1


def test_a_run_on_another_machine_is_unknown_here(tmp_path: Path) -> None:
    folder = make(tmp_path)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "origin": {"machine": "elsewhere", "user": "ann"}}))
    seen = standing(find_job(LOCAL, tmp_path))
    assert (seen.state, seen.ended) == ("unknown", False)


def slurm_that_forgot(folder: Path) -> Slurm:
    folder.mkdir()
    for name, body in {
        "scontrol": "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        "sacct": "exit 1",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return Slurm({"PATH": f"{folder}:/usr/bin:/bin"})


@pytest.mark.starts_processes
def test_what_slurm_forgot_the_job_itself_knows(tmp_path: Path) -> None:
    slurm = slurm_that_forgot(tmp_path / "bin")
    folder = make(tmp_path, "12", "slurm")
    job = find_job("12", tmp_path)
    assert standing(job, slurm).state == "forgotten"
    end = {"kind": "run-end", "data": {"exit": 7, "reason": "Training FAILED (exit=7)"}}
    write_lines(folder / "events.jsonl", [{"kind": "attempt-begin", "data": {}}, end])
    assert (standing(job, slurm).state, standing(job, slurm).exit) == ("failed", 7)
    # The next attempt began and was never heard of again: the end of the first is not its end.
    write_lines(folder / "events.jsonl", [end, {"kind": "attempt-begin", "data": {}}])
    assert standing(job, slurm).state == "forgotten"


def test_a_job_without_a_log_is_not_mistaken_for_a_longer_id(tmp_path: Path) -> None:
    make(tmp_path, "12", "slurm", log=None)
    make(tmp_path, "123", "slurm")
    assert find_job("12", tmp_path).id == "12"
    assert find_job("123", tmp_path).id == "123"
    assert find_job(str(tmp_path / "12-JAX-x"), tmp_path).log is None


@pytest.mark.starts_processes
def test_the_list_has_jobs_that_wait_and_asks_slurm_once(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    said = "JobId=12 JobName=JAX-x UserId=ann(1004) JobState=PENDING Reason=Resources"
    (tmp_path / "bin").mkdir()
    for name, body in {"squeue": "exit 1", "scontrol": f"echo x >> {asked}; echo '{said}'"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    slurm = Slurm({"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    make(tmp_path, "12", "slurm", log=None)
    make(tmp_path, "13", "slurm")
    make(tmp_path)
    (tmp_path / "99-JAX-upstream.log").write_text("x\n")
    jobs = submitted(tmp_path)
    states = {job.id: seen.state for job, seen in zip(jobs, standings(jobs, slurm), strict=True)}
    assert states == {"12": "pending", "13": "forgotten", LOCAL: "lost", "99": "unknown"}
    assert asked.read_text() == "x\n"
    silent = {job.id: seen.state for job, seen in zip(jobs, standings(jobs, Slurm({"PATH": ""})), strict=True)}
    assert (silent["12"], silent["13"]) == ("unknown", "unknown")


def test_logs_of_one_rank_and_the_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = make(tmp_path)
    assert call(monkeypatch, tmp_path, "logs", LOCAL, "-n", "1") == 0
    assert capfdbinary.readouterr().out == b"0: three\n"
    assert call(monkeypatch, tmp_path, "logs", LOCAL, "--rank", "0", "-n", "-1") == 0
    assert capfdbinary.readouterr().out == b"0: one\n0: three\n"
    (folder / "ranks").mkdir()
    (folder / "ranks" / "0.log").write_bytes(b"09:30 one \xff\n")
    assert call(monkeypatch, tmp_path, "logs", LOCAL, "--rank", "0", "-f") == 0  # the run is over: it does not stay
    assert capfdbinary.readouterr().out == b"09:30 one \xff\n"


@pytest.mark.parametrize(
    "body", [b"", b"a", b"a\n", b"a\nb\nc", b"\n\n\n", b"x" * 200000 + b"\ny\n", b"line\n" * 30000]
)
@pytest.mark.parametrize("lines", [-1, 0, 1, 2, 29999, 40000])
def test_the_last_lines_of_any_file(body: bytes, lines: int, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(body)
    with open_at_last(path, lines) as file:
        all_lines = body.splitlines(keepends=True)
        assert file.read() == b"".join(
            all_lines if lines < 0 else all_lines[len(all_lines) - lines :] if lines < len(all_lines) else all_lines
        )
