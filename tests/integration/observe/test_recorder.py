"""The recorder with a real Prometheus: runs, ends, is killed at every level, and loses nothing it need not lose."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_job import Exporter, Job, gone, wait_for

from trackwalker.observe.mirror import Mirror
from trackwalker.observe.prometheus import find_promtool
from trackwalker.observe.server import Server
from trackwalker.observe.tsdb import list_parts, read_block

pytestmark = pytest.mark.disturbed_by_load(reason="passes of a mirror every two seconds")


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.close()


@pytest.fixture
def job(tmp_path: Path, prometheus: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


def test_a_run_from_its_first_target_to_its_end(job: Job, exporter: Exporter) -> None:
    recorder = job.start()
    time.sleep(1.5)  # the wait is the subject: nothing happens in it
    assert not job.local.exists() or not list(job.local.glob("*/prometheus/wal")), "nothing to scrape yet"
    job.announce(exporter)
    server = job.server()
    assert server["url"] == f"http://127.0.0.1:{server['port']}"
    [live] = job.local.glob("1-*/prometheus")
    assert live.stat().st_mode & 0o777 == 0o700
    wait_for(lambda: exporter.scrapes >= 3, 30)
    late = Exporter()
    try:
        job.announce(exporter, late)
        wait_for(lambda: late.scrapes >= 3, 30)
        job.event("run-end")
        assert recorder.wait(20) == 0, job.output.read_text()
        counts = job.counts()
        for target in (exporter, late):
            assert counts[target.address] == list(range(1, target.scrapes + 1)), "every scrape, to the last"
    finally:
        late.close()
    assert gone(server["pid"])
    assert list(job.local.iterdir()) == []
    left = {p.name for p in (job.dir / "prometheus").iterdir()}
    assert left == {"wal", "prometheus.log", "mirror-of"}
    assert "Server is ready" in (job.dir / "prometheus" / "prometheus.log").read_text()


def test_prometheus_then_the_recorder_then_the_machine_go_and_the_record_stays_whole(
    job: Job, exporter: Exporter
) -> None:
    in_flight: set[int] = set()

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        # One scrape may have been on its way into the database when the kill came.
        in_flight.update({exporter.scrapes, exporter.scrapes + 1})

    def scraped(more: int) -> None:
        goal = exporter.scrapes + more
        wait_for(lambda: exporter.scrapes >= goal, 20, job.output)

    def lost() -> set[int]:
        return set(range(1, exporter.scrapes + 1)) - set(job.counts()[exporter.address]) - in_flight

    job.announce(exporter)
    recorder = job.start()
    first = job.server()
    scraped(4)

    kill(first["pid"])
    wait_for(lambda: job.server()["pid"] != first["pid"], 20, job.output)
    # Meanwhile the job directory goes away and comes back: the recording does not care.
    job.dir.rename(job.dir.with_name("away"))
    scraped(3)
    job.dir.with_name("away").rename(job.dir)
    wait_for(lambda: "mirror: working again" in job.output.read_text(), 30)
    said = job.output.read_text()
    assert "Prometheus died with exit code -9, starting again in 1 s" in said
    assert said.count("No such file or directory") == 1, "told once"

    second = job.server()
    kill(recorder.pid)
    recorder.wait()
    wait_for(lambda: gone(second["pid"]), 30)
    at_kill = exporter.scrapes
    assert all(n > at_kill - 4 for n in lost()), "the mirror is at most two seconds and two ticks behind"

    recorder = job.start()
    wait_for(lambda: job.server()["pid"] != second["pid"], 20, job.output)
    scraped(2)
    recorder.terminate()
    assert recorder.wait(20) == 0, job.output.read_text()
    assert lost() == set(), "the local database had what the mirror had not"
    assert list(job.local.iterdir()) == []

    job.local = job.local.with_name("another-machine")
    recorder = job.start()
    scraped(2)
    job.event("run-end")
    assert recorder.wait(20) == 0, job.output.read_text()
    assert lost() == set()


def test_the_mirror_is_whole_through_compaction_and_truncation(tmp_path: Path, prometheus: Path) -> None:
    promtool = find_promtool(prometheus)
    if promtool is None:
        pytest.skip("this Prometheus came without promtool: run `trackwalker setup`")
    live, job, log, config = (tmp_path / n for n in ("live", "job", "prometheus.log", "prometheus.yml"))
    live.mkdir()
    job.mkdir()
    exporter = Exporter(series=20)
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: t, static_configs: [{{targets: ['{exporter.address}']}}]}}]\n"
    )
    short = ["--storage.tsdb.min-block-duration=1s", "--storage.tsdb.max-block-duration=9s"]
    server = Server(prometheus, live, config, log, short)
    troubles: list[str] = []
    mirror = Mirror(live, job / "prometheus", log, troubles.append)
    snapshots: list[tuple[Path, int]] = []
    removed, checkpoints = set(), set()
    try:
        assert server.wait_ready(10)
        began = time.monotonic()
        chance = random.Random(1)
        while not (len(removed) >= 2 and len(checkpoints) >= 2 and len(snapshots) >= 3):
            assert time.monotonic() - began < 60, (removed, checkpoints)
            before = time.time()
            if mirror.sync() and chance.random() < 0.1:
                # What a reader would find if this machine died right here.
                snapshot = tmp_path / f"snapshot{len(snapshots)}"
                shutil.copytree(job / "prometheus", snapshot)
                snapshots.append((snapshot, int(before * 1000) - 500))
            parts = list_parts(job / "prometheus")
            checkpoints |= set(parts.checkpoints)
            removed |= {old for b in parts.blocks for old in read_block(job / "prometheus" / b).replaces}
            time.sleep(0.2)
    finally:
        server.stop()
        exporter.close()
    assert mirror.sync()
    assert troubles == []
    assert not removed & set(list_parts(job / "prometheus").blocks)

    def dump(folder: Path) -> set[tuple[str, int]]:
        done = subprocess.run([promtool, "tsdb", "dump", str(folder)], capture_output=True, text=True, check=True)
        lines = (line.rsplit(" ", 1) for line in done.stdout.splitlines())
        return {(series, int(at)) for series, at in lines}

    all_samples = dump(live)
    assert len(all_samples) > 500
    assert dump(job / "prometheus") == all_samples
    for snapshot, until in snapshots:
        due = {sample for sample in all_samples if sample[1] <= until}
        assert due <= dump(snapshot), "a snapshot lacks samples that were there before it was taken"


def test_two_recorders_do_not_fight(job: Job, exporter: Exporter) -> None:
    job.announce(exporter)
    first = job.start()
    job.server()
    second = job.start()
    assert second.wait(20) == 2
    assert "another recorder is at work" in job.output.read_text()
    job.recorder = first
    assert first.poll() is None
    first.terminate()
    assert first.wait(20) == 0


def test_apt_gives_a_prometheus_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("no apt on this system: only Debian and its descendants can run this test")
    from trackwalker.observe.prometheus import BINARY, CannotInstall, _unfit, from_apt, place, version_of

    services = subprocess.run(["dpkg", "-l", "prometheus"], capture_output=True, check=False).stdout
    try:
        place(from_apt, tmp_path, _unfit, print)
    except CannotInstall as e:
        if os.environ.get("CI"):  # there the archive is known to answer: a failure is ours
            raise
        pytest.skip(f"the package archive cannot be reached: {e}")
    assert (version_of(tmp_path / BINARY) or (0, 0)) >= (2, 40)
    assert find_promtool(tmp_path / BINARY) is not None
    assert [p.name for p in tmp_path.iterdir()] == ["prometheus"], "the package file is gone"
    after = subprocess.run(["dpkg", "-l", "prometheus"], capture_output=True, check=False).stdout
    assert after == services, "unpacked, not installed"


def test_a_port_taken_in_between_is_noticed_not_mistaken_for_ours(tmp_path: Path, prometheus: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text("global: {}\n")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = Server(prometheus, tmp_path / "a", config, tmp_path / "a.log")
    try:
        assert first.wait_ready(10)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trackwalker.observe.server.free_port", lambda: first.port)
            second = Server(prometheus, tmp_path / "b", config, tmp_path / "b.log")
        assert not second.wait_ready(10)
        assert second.lost_port()
    finally:
        first.stop()
    assert gone(first.process.pid)


def test_a_server_started_from_a_passing_thread_outlives_that_thread(tmp_path: Path, prometheus: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text("global: {}\n")
    (tmp_path / "data").mkdir()
    started: list[Server] = []
    thread = threading.Thread(
        target=lambda: started.append(Server(prometheus, tmp_path / "data", config, tmp_path / "log"))
    )
    thread.start()
    thread.join()
    try:
        assert started[0].wait_ready(10)
        time.sleep(0.2)
        assert started[0].running
    finally:
        started[0].stop()
