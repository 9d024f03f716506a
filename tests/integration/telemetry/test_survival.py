"""kill -9 of the recorder, the agent and trackwalker itself: training goes on at its speed, nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import end_runs, pids_with, processes_of
from tiny_settings import QUIET

from trackwalker.job.journal import read
from trackwalker.telemetry.store import open_database
from trackwalker.watch.detect.live import LiveWatch

pytestmark = [
    pytest.mark.disturbed_by_load(reason="watchers are killed and must be back before the run ends"),
    pytest.mark.timeout(300),
]
STEPS = 180


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    """A failing test must not leave its run behind either."""
    yield
    end_runs(tmp_path)


def kill(pids: list[int]) -> float:
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return time.time()


def wait_for_step(watch: LiveWatch, step: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while (watch.last_step or -1) < step:
        assert time.monotonic() < deadline, f"step {step} was not reached in {seconds} s"
        watch.look()
        time.sleep(0.1)


def test_training_survives_every_watcher(tmp_path: Path, prometheus: Path) -> None:
    command = [sys.executable, "-m", "trackwalker", "run", "tiny", "-n", "2", "--observe", "-w", str(tmp_path)]
    command += ["--", *QUIET, f"steps={STEPS}", "checkpoint_period=100000"]
    cli = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert cli.stdout is not None
        words = re.match(r"job (\S+)", cli.stdout.readline())
        assert words is not None
        job_id = words[1]
        job = next(tmp_path.glob(f"{job_id}-*/"))
        watch = LiveWatch(job)
        kills = []
        wait_for_step(watch, 35)
        kills.append(kill(pids_with(job_id, "trackwalker.observe")))
        wait_for_step(watch, 75)
        kills.append(kill(pids_with(job_id, "agent.pyz")))
        wait_for_step(watch, 115)
        cli.kill()
        cli.wait()
        kills.append(time.time())
        wait_for_step(watch, STEPS - 1)
        assert processes_of(job, wait_s=30) == []
    finally:
        cli.kill()
        cli.stdout and cli.stdout.close()

    events = read(job / "events.jsonl").items
    assert [e["data"]["exit"] for e in events if e["kind"] == "run-end"] == [0]
    assert [e["kind"] for e in events].count("agent-restart") == 1
    assert [e for e in events if e["kind"] == "rank-exit" and e["data"]["exit"]] == []

    # Not one line was lost or doubled, although the agent that writes them was replaced.
    log = job.with_name(job.name + ".log").read_text()
    for rank in range(2):
        assert [int(s) for s in re.findall(rf"^{rank}: completed step: (\d+),", log, re.M)] == list(range(STEPS))

    # No pause: the gap between two steps around a kill stays within what the run does by itself.
    ends = np.array([watch.steps[s] for s in sorted(watch.steps)])[5:]
    gaps = np.diff(ends)
    usual = max(float(np.quantile(gaps, 0.95)) * 4, 2.0)
    for moment in kills:
        near = gaps[(ends[1:] > moment - 1) & (ends[:-1] < moment + 5)]
        assert len(near)
        assert float(near.max()) < usual
        before, after = gaps[ends[1:] < moment][-30:], gaps[ends[:-1] > moment][:30]
        assert float(np.median(after)) < 1.6 * float(np.median(before))

    # The recording goes on after the recorder was replaced.
    with open_database(job / "prometheus") as telemetry:
        end = telemetry.range()[1]
        assert end > kills[2] + 2
        window = max(2, int(end - kills[2]))
        assert len(telemetry.by_host(f"count by (host) (count_over_time(hw_rank_up[{window}s]))", end)) == 2


def test_everything_killed_but_the_ranks(tmp_path: Path, prometheus: Path) -> None:
    """Agent and trackwalker are both gone: the ranks finish by themselves and the recorder leaves after them."""
    command = [sys.executable, "-m", "trackwalker", "run", "tiny", "-n", "2", "--observe", "-w", str(tmp_path)]
    command += ["--", *QUIET, "steps=40", "checkpoint_period=100000"]
    cli = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert cli.stdout is not None
        job_id = cli.stdout.readline().split()[1]
        job = next(tmp_path.glob(f"{job_id}-*/"))
        watch = LiveWatch(job)
        wait_for_step(watch, 5)
        cli.kill()
        cli.wait()
        kill(pids_with(job_id, "agent.pyz"))
        assert processes_of(job, wait_s=90) == []
    finally:
        cli.kill()
        cli.stdout and cli.stdout.close()
    # Nobody was there to collect it, but every rank's own output is in the job directory.
    for rank in range(2):
        raw = (job / "ranks" / f"{rank}.out").read_text()
        assert raw.count("completed step:") == 40
        assert (job / "ranks" / f"{rank}.exit").read_text() == "0"


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long(reason="the same way out as Ctrl-C takes"))],
)
def test_ctrl_c_ends_the_run(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trackwalker", "run", "tiny", "-n", "1", "-w", str(tmp_path)]
    command += ["--", *QUIET, "steps=5000"]
    cli = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert cli.stdout is not None
        job_id = cli.stdout.readline().split()[1]
        job = next(tmp_path.glob(f"{job_id}-*/"))
        wait_for_step(LiveWatch(job), 5)
        cli.send_signal(number)
        _, err = cli.communicate(timeout=60)
    finally:
        cli.kill()
    assert cli.returncode == 143, err
    assert "Traceback" not in err
    assert "CANCELLED (scancel / SIGTERM)" in job.with_name(job.name + ".log").read_text()
    assert processes_of(job) == []
