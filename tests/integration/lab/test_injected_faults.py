"""Real faults in real four-process runs, each diagnosed from its own recording: the cause, its rank, nobody else.

Beside `test_real_faults.py` (stop, kill, cpu, none). A fault this machine cannot make is skipped with the reason.
Late batches are found in every landing; `make test-all` (or `lab score --suite real`) makes all the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from command_here import call_here
from processes import end_runs, processes_of
from tiny_settings import PACED, as_mapping

from trackwalker.diagnose.engine import diagnose
from trackwalker.job.processes import read_stat
from trackwalker.job.resolve import resolve
from trackwalker.lab.real import network
from trackwalker.lab.real.cases import CASES, real_cases
from trackwalker.lab.real.demo import run_demo
from trackwalker.lab.real.undo import NotHereError, pending
from trackwalker.lab.scoring.grade import grade
from trackwalker.launch.plan import How, plan_local
from trackwalker.launch.request.words import ModelSpec, Passthrough
from trackwalker.launch.schedulers.local import LocalRun

pytestmark = [
    pytest.mark.disturbed_by_load(reason="a fault is judged by step times on a machine that may be busy"),
    pytest.mark.timeout(420),
]
ELSEWHERE = {"none", "stop", "kill", "cpu"}
CHOSEN = [n for n in CASES if n not in ELSEWHERE]


@pytest.mark.alone  # a run whose batches come at a pace of their own waits for data already when it is healthy
@pytest.mark.long(reason="half a minute to a minute each, alone; test_watch_real.py meets late data on a real run")
@pytest.mark.parametrize("name", CHOSEN)
def test_the_recording_tells_what_was_done(name: str, tmp_path: Path, prometheus: Path) -> None:
    case = CASES[name]
    try:
        result = run_demo(case, tmp_path, lambda text: None, lambda watch: None)
    except NotHereError as e:
        pytest.skip(f"this machine cannot do that to a run: {e}")
    assert result.right, result.diagnosis.verdict.to_json()
    # After the end the same, read from the disk alone: what we did to end the run is no cause.
    after = diagnose(resolve(str(result.job_dir), tmp_path)).verdict
    graded = grade(json.loads(after.to_json()), case.truth)
    assert graded.passed, (graded, after.to_json())
    assert pending(result.job_dir) == [], "nothing is left to undo"
    assert processes_of(result.job_dir) == []
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith("local_")] == [], "stores and hosts files"
    assert not any(n.startswith("twlab-") for n in _namespaces() - _before)


def _namespaces() -> set[str]:
    folder = Path("/run/netns")
    return {p.name for p in folder.iterdir()} if folder.exists() else set()


_before = _namespaces()


def test_there_are_ten_real_faults_with_truth() -> None:
    cases = real_cases()
    assert len([truth for _, _, truth in cases if truth.outcome == "incident"]) >= 10
    assert len({name for name, _, _ in cases}) == len(cases)
    assert any(truth.outcome == "healthy" for _, _, truth in cases)


def test_inject_from_the_command_line_is_undone_even_after_a_kill(tmp_path: Path) -> None:
    settings = Passthrough({**as_mapping(PACED), "steps": "100000"})
    plan = plan_local(ModelSpec("tiny"), settings, tmp_path, How("local", ["test"]))
    run = LocalRun.start(plan)
    command = [sys.executable, "-m", "trackwalker", "lab", "inject", "stop", str(run.job_dir), "--rank", "0"]
    with ExitStack() as stack:
        stack.callback(end_runs, tmp_path)
        stack.callback(_end, run)
        pid = _main_pid(run)
        done = subprocess.run([*command, "--seconds", "1"], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, "undone" in done.stderr) == (0, True), done.stderr
        assert _becomes(pid, stopped=False)
        injector = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert injector.stdout is not None
        assert "stop on rank 0" in injector.stdout.readline()
        assert _becomes(pid, stopped=True)
        injector.send_signal(signal.SIGKILL)
        injector.wait()
        assert _becomes(pid, stopped=False), "its guard undoes what it can no more"
        done = call_here(os.environ, *command[3:], "--undo")
        assert (done.returncode, done.stdout) == (0, "nothing is left to undo\n")
        done = call_here(os.environ, *command[3:5], "gremlins", str(run.job_dir))
        assert done.returncode == 2
        assert "unknown fault 'gremlins'" in done.stderr
        if network.unavailable() is None:
            done = call_here(os.environ, *command[3:5], "link-down", str(run.job_dir), "--rank", "0")
            assert (done.returncode, "share the machine's network" in done.stderr) == (2, True)


def _end(run: LocalRun) -> None:
    run.cancel()
    deadline = time.monotonic() + 30
    while run.supervise() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    run.wait_closed()


def _main_pid(run: LocalRun) -> int:
    deadline = time.monotonic() + 30
    state = run.job_dir / "agent" / "state.json"
    while time.monotonic() < deadline:
        if state.exists() and (pid := json.loads(state.read_text())["ranks"][0]["main"]):
            return int(pid)
        time.sleep(0.1)
    raise AssertionError("the rank did not start")


def _becomes(pid: int, stopped: bool) -> bool:
    """Whether a process is soon in that state; a signal takes its moment to arrive."""
    deadline = time.monotonic() + 5
    while (stat := read_stat(pid)) is not None and (stat.state == "T") != stopped and time.monotonic() < deadline:
        time.sleep(0.02)
    return stat is not None and (stat.state == "T") == stopped
