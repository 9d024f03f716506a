"""What a kill -9 or a full disk costs the record of a real run: seconds of samples, nothing mirrored, no training."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import pids_with, processes_of
from recorded_job import Exporter, Job, wait_for
from tiny_settings import QUIET

from trackwalker.errors import EvidenceError
from trackwalker.job.journal import read
from trackwalker.telemetry.store import open_database
from trackwalker.watch.detect.live import LiveWatch

pytestmark = [
    pytest.mark.disturbed_by_load(reason="gaps of a recording are measured in real seconds"),
    pytest.mark.timeout(300),
]
MOST_LOST_S = 15.0
PROMETHEUS, RECORDER, AGENT = "--storage.tsdb.path=", "trackwalker.observe", "agent.pyz"


class Run:
    """A training run under way."""

    def __init__(self, workspace: Path, steps: int) -> None:
        command = [sys.executable, "-m", "trackwalker", "run", "tiny", "-n", "2", "--observe", "-w", str(workspace)]
        command += ["--", *QUIET, f"steps={steps}", "checkpoint_period=100000"]
        self.cli = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.cli.stdout is not None
        self.id = self.cli.stdout.readline().split()[1]
        self.dir = next(workspace.glob(f"{self.id}-*/"))
        self.watch = LiveWatch(self.dir)

    def steps(self, more: int) -> None:
        """Wait until that many further steps are done."""
        self.watch.look()
        goal = (self.watch.last_step or 0) + more
        deadline = time.monotonic() + 120
        while (self.watch.last_step or 0) < goal:
            assert time.monotonic() < deadline, f"step {goal} was not reached"
            self.watch.look()
            time.sleep(0.1)

    def kill(self, *words: str) -> float:
        """kill -9 of all processes with one of these words, as nearly at once as can be."""
        pids = [pid for word in words for pid in pids_with(self.id, word)]
        assert len(pids) >= len(words)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return time.time()

    def recorded(self, after: float) -> Callable[[], bool]:
        """Whether there are samples of the ranks from after a moment; looked up when the mirror has grown since."""
        looked = after

        def found() -> bool:
            nonlocal looked
            grown = max((p.stat().st_mtime for p in self.dir.glob("prometheus/wal/*")), default=0.0)
            if grown <= looked:
                return False  # a look starts a Prometheus
            looked = grown
            return bool(len(times := self.sample_times())) and times[-1] > after

        return found

    def sample_times(self) -> np.ndarray:
        """When the ranks were seen, in the mirror as it is now."""
        try:
            with open_database(self.dir / "prometheus") as t:
                seen = [times for _, times, _ in t.raw("hw_rank_up", *t.range())]
        except EvidenceError:
            return np.empty(0)  # nothing was scraped yet
        return np.unique(np.concatenate(seen)) if seen else np.empty(0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that a test can fill."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("not allowed to mount a tmpfs: run the tests as root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free; the file that has to go to make room again."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(4096))
    return ballast


@pytest.fixture
def run(small_disk: Path, prometheus: Path) -> Iterator[Run]:
    run = Run(small_disk, steps=100_000)
    yield run
    run.cli.kill()
    run.cli.communicate()
    for pid in pids_with(run.id, ""):
        os.kill(pid, signal.SIGKILL)
    assert processes_of(run.dir) == []


def test_kill_9_of_everybody_and_a_full_disk_cost_seconds_of_samples_and_no_training(run: Run) -> None:
    wait_for(run.recorded(0), 60)  # Prometheus takes some seconds for its first look
    kills = {}
    for name, words in (
        ("Prometheus", [PROMETHEUS]),
        ("agent", [AGENT]),
        ("head", [RECORDER, PROMETHEUS, AGENT]),  # all but the ranks and `trackwalker run`, which starts them again
    ):
        kills[name] = run.kill(*words)
        run.steps(10)  # training goes on meanwhile
        wait_for(run.recorded(kills[name] + 1), 60)

    before, kills["disk"] = run.watch.last_step or 0, time.time()
    ballast = fill(run.dir.parent)  # not under the mirror alone: under every log and journal of the job
    time.sleep(6)  # the wait is the subject: three passes of the mirror meet a full disk
    ballast.unlink()
    wait_for(run.recorded(time.time()), 60)
    run.steps(1)
    assert (run.watch.last_step or 0) > before + 5, "they trained on all the time"

    times = run.sample_times()
    gaps = np.diff(times)
    for name, moment in kills.items():
        near = gaps[(times[1:] >= moment) & (times[:-1] <= moment + 2)]
        print(f"{name}: {near.max():.1f} s without samples")
    assert gaps.max() <= MOST_LOST_S

    # At last everything at once, `trackwalker run` too: nobody is left to go on, but what was mirrored stays.
    mirrored = run.sample_times()
    run.cli.kill()
    moment = run.kill(RECORDER, PROMETHEUS, AGENT)
    kept = run.sample_times()
    assert set(mirrored) <= set(kept)
    print(f"kill -9 of everything: the record ends {moment - kept[-1]:.1f} s before")
    assert moment - kept[-1] <= MOST_LOST_S
    size = (run.dir / "ranks" / "0.out").stat().st_size
    wait_for(lambda: (run.dir / "ranks" / "0.out").stat().st_size > size + 200, 20)  # and still they train
    assert len(pids_with(run.id, "trackwalker.trainers.tiny")) >= 2
    events = [e["kind"] for e in read(run.dir / "events.jsonl").items]
    assert events.count("agent-restart") == 2
    assert "rank-exit" not in events


@pytest.mark.long(reason="half a minute of waiting; above the same disk is full under a real run")
def test_a_full_disk_under_the_mirror_loses_nothing(tmp_path: Path, small_disk: Path, prometheus: Path) -> None:
    job, exporter = Job(tmp_path), Exporter(series=50)
    (job.dir / "prometheus").symlink_to(small_disk)
    try:
        job.announce(exporter)
        recorder = job.start()
        job.server()
        wait_for(lambda: exporter.scrapes >= 4 and (small_disk / "wal").exists(), 20, job.output)
        mirrored = job.counts()[exporter.address]
        ballast = fill(small_disk)
        wait_for(lambda: "No space left on device" in job.output.read_text(), 20, job.output)
        assert set(mirrored) <= set(job.counts()[exporter.address])
        seen = exporter.scrapes
        wait_for(lambda: exporter.scrapes >= seen + 3, 20, job.output)  # the recording goes on
        ballast.unlink()
        wait_for(lambda: "mirror: working again" in job.output.read_text(), 20, job.output)
        job.event("run-end")
        assert recorder.wait(20) == 0, job.output.read_text()
        assert job.counts()[exporter.address] == list(range(1, exporter.scrapes + 1)), "not one sample is missing"
    finally:
        job.close()
        exporter.close()
