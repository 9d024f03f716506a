"""Acceptance tests 5, 12, 14 and 15 of the observability specification (section 17), by number.

6 to 10 are in test_acceptance_collectors.py, 1 to 4 and 11 in test_acceptance_training.py, 14's "no Ray" in the tests
of Ray, and 14's Kubernetes part waits for that launcher. 18 is a measurement, not a test: bench/overhead.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import agent_run
import httpx
import pytest
from recorded_job import Exporter, Job, gone, wait_for
from tiny_settings import PACED
from tsdb_jobs import call, end, start, world
from worlds import START

from conftest import tree_hash
from trackwalker.launch.code.bundle import build_agent
from trackwalker.observe.server import Server
from trackwalker.telemetry.store import open_database

pytestmark = [
    pytest.mark.disturbed_by_load(reason="a store is killed at random moments of its real clock"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def job(tmp_path: Path, prometheus: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[agent_run.Run]:
    sleeps = "import time; print('up', flush=True); time.sleep(120)"
    run = agent_run.Run(tmp_path, build_agent(tmp_path / "agent.pyz"), [sleeps], grace_s=2.0)
    yield run
    run.agent.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.agent.wait(10)
    for line in run.left_over():
        os.kill(int(line.split()[0]), signal.SIGKILL)


def test_a05_a_stranger_on_the_agents_port_is_not_taken_for_it(run: agent_run.Run, job: Job) -> None:
    """D5: the port of a dead agent goes to another exporter; the next agent moves, and nobody is mistaken."""

    def announced() -> str:
        (group,) = json.loads((run.dir / "agent" / "targets" / "box.json").read_text())
        return str(group["targets"][0])

    run.up()
    agent_run.wait_for(announced)
    job.dir, job.id = run.dir, "local_1_1_ab"
    recorder = job.start()
    first, url = announced(), job.server()["access"]

    def scraped(target: str) -> bool:
        asked = {"query": f'hw_agent_info{{instance="{target}"}}'}
        answer = httpx.get(f"{url}/api/v1/query", params=asked, trust_env=False).json()
        return bool(answer["data"]["result"])

    wait_for(lambda: scraped(first), 20, job.output)
    run.agent.kill()
    run.agent.wait()
    # The worst kind: it answers every path with metrics. (Most exporters have nothing at the path we ask for.)
    stranger = Exporter(job_id=None, port=int(first.rpartition(":")[2]))
    try:
        wait_for(lambda: f"{first} is answered by another program" in job.output.read_text(), 20, job.output)
        run.start("--adopt")
        agent_run.wait_for(lambda: announced() != first)
        second = announced()
        wait_for(lambda: scraped(second), 20, job.output)
        taken = stranger.scrapes
        time.sleep(2.5)  # the wait is the subject: two scrape intervals in which it is not asked
        assert stranger.scrapes == taken, "nobody asks it any more"
        recorder.terminate()
        assert recorder.wait(20) == 0, job.output.read_text()
    finally:
        stranger.close()
    with open_database(job.dir / "prometheus") as t:
        instances = {labels["instance"]: times for labels, times, _ in t.raw("hw_agent_info", *t.range())}
        polluted = [len(times) for _, times, _ in t.raw("scrapes_total", *t.range())]
    assert instances.keys() == {first, second}
    assert sum(polluted) <= 8, "it was noticed within seconds"
    assert instances[second][0] - instances[first][-1] < 15


def test_a12_a_store_killed_at_any_moment_keeps_what_was_mirrored(job: Job) -> None:
    """D17: the recorder and its Prometheus go in the middle of writing and of mirroring."""
    chance = random.Random(12)
    exporter = Exporter(series=300)
    job.announce(exporter)
    mirrored = 0
    try:
        for _ in range(2):
            recorder = job.start()
            goal = exporter.scrapes + 3
            wait_for(lambda goal=goal: exporter.scrapes >= goal, 20, job.output)
            pid = job.server()["pid"]
            time.sleep(chance.uniform(0.0, 2.2))  # the wait is the subject: any moment between two mirror passes
            before = len(job.counts()[exporter.address])
            recorder.kill()
            recorder.wait()
            wait_for(lambda pid=pid: gone(pid), 30)
            after = job.counts()[exporter.address]
            assert len(after) >= before >= mirrored
            assert after == sorted(set(after)), "in order, none twice"
            mirrored = len(after)
    finally:
        exporter.close()


MIRROR_FOR_EVER = """
import sys, time
from pathlib import Path
from trackwalker.observe.mirror import Mirror
live, copy = Path(sys.argv[1]), Path(sys.argv[2])
mirror = Mirror(live, copy, live.parent / "log", print)
while True:
    mirror.sync()
"""


def test_a12_a_mirror_killed_in_the_middle_of_a_copy_is_still_a_beginning_of_the_original(tmp_path: Path) -> None:
    live, copy, noise = tmp_path / "live", tmp_path / "copy", random.Random(1)
    (live / "wal").mkdir(parents=True)
    have: dict[str, int] = {}
    for turn in range(8):
        segment = live / "wal" / f"{turn:08d}"
        segment.touch()
        process = subprocess.Popen([sys.executable, "-c", MIRROR_FOR_EVER, str(live), str(copy)])
        try:
            wait_for((copy / "wal" / segment.name).exists, 20)
            until = time.monotonic() + noise.uniform(0.05, 0.4)
            with segment.open("ab", buffering=0) as out:
                while time.monotonic() < until:
                    out.write(noise.randbytes(300_000))
        finally:
            process.kill()
            process.wait()
        for part in (copy / "wal").iterdir():
            mirrored = part.read_bytes()
            assert (live / "wal" / part.name).read_bytes().startswith(mirrored)
            assert len(mirrored) >= have.get(part.name, 0)
            have[part.name] = len(mirrored)
    assert sum(have.values()) > 1_000_000


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder with a database that cannot be written, not even by root."""
    source, place = tmp_path / "source", tmp_path / "read-only"
    source.mkdir()
    place.mkdir()
    bind = ["mount", "--bind", "-o", "ro", str(source), str(place)]
    if subprocess.run(bind, capture_output=True, check=False).returncode != 0:
        pytest.skip("not allowed to bind a mount: run the tests as root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("trouble", ["config", "read-only", "port"])
def test_a12_a_store_that_cannot_start_says_why_and_touches_nothing(
    trouble: str, tmp_path: Path, prometheus: Path, read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D18: upstream blamed the port for everything and removed the data."""
    config, blocks = tmp_path / "prometheus.yml", world("1").build(tmp_path / "made", prometheus) / "prometheus"
    config.write_text("global: {scrape_interval: nonsense}\n" if trouble == "config" else "global: {}\n")
    data = tmp_path / "source" if trouble == "read-only" else tmp_path / "data"
    shutil.copytree(blocks, data, dirs_exist_ok=True)
    before = tree_hash(data)
    taken = Exporter()
    if trouble == "port":
        monkeypatch.setattr("trackwalker.observe.server.free_port", lambda: int(taken.address.rpartition(":")[2]))
    server = Server(prometheus, read_only if trouble == "read-only" else data, config, tmp_path / "log")
    try:
        assert not server.wait_ready(20)
        assert not server.running
    finally:
        server.stop()
        taken.close()
    words = {"config": "configuration is wrong", "read-only": "cannot be written", "port": "port is taken"}
    assert server.cause().endswith(words[trouble])
    assert server.lost_port() == (trouble == "port")
    if trouble == "port":  # it opens its database before its port: lock and query log may come, the data stay
        for name in ("lock", "queries.active", "wal", "chunks_head"):
            path = data / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert tree_hash(data) == before


def test_a14_without_any_network_everything_is_recorded(tmp_path: Path, prometheus: Path) -> None:
    """D20: nothing is fetched, resolved or reached at the start; loopback is all there is."""
    words = [sys.executable, "-m", "trackwalker", "run", "tiny", "-n", "1", "--observe", "-w", str(tmp_path)]
    words += ["--", *PACED, "steps=100", "checkpoint_period=100000"]
    isolated = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words]
    probe = subprocess.run([*isolated[:4], "ip link set lo up"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("not allowed to make a network namespace: run the tests as root, with iproute2")
    env = {**os.environ, "TRACKWALKER_PROMETHEUS": str(prometheus)}
    done = subprocess.run(isolated, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.returncode == 0, done.stderr
    (job,) = tmp_path.glob("local_*/")
    with open_database(job / "prometheus") as t:
        up = t.raw("hw_collector_up", *t.range())
        info = t.raw("hw_rank_info", *t.range())
        steps = t.raw("tb_step", *t.range())
    collectors = {labels["collector"] for labels, _, _ in up}
    assert collectors >= {"host", "netdev", "lane", "training", "identity", "kernel_log", "filesystem", "rdma"}
    assert [labels["collector"] for labels, _, values in up if values[-1] != 1] == []
    assert {(labels["rank"], labels["local_rank"]) for labels, _, _ in info} == {("0", "0")}
    assert {max(values) for _, _, values in steps} == {99}


def test_a15_two_people_view_one_finished_job_and_change_no_byte(tmp_path: Path, prometheus: Path) -> None:
    """D22, and the last line of the issue: readers have copies of their own; the job may even be read-only."""
    made = world("77").build(tmp_path / "workspace", prometheus)
    before = tree_hash(made)
    bind = ["mount", "--bind", "-o", "ro", str(made), str(made)]
    mounted = subprocess.run(bind, capture_output=True, check=False).returncode == 0
    viewers = [start(tmp_path / "workspace", "view", "77") for _ in range(2)]
    try:
        urls = []
        for viewer in viewers:
            assert viewer.stdout is not None
            while not (
                found := re.findall(r"(http://127\.0\.0\.1:\d+)/\S*[?&]token=([\w-]+)", viewer.stdout.readline())
            ):
                assert viewer.poll() is None
            urls += found
        assert len(set(urls)) == 2
        for url, token in urls:
            asked = {"query": "count(up)", "time": START + 300, "token": token}
            answer = httpx.get(f"{url}/api/v1/query", params=asked, trust_env=False).json()
            assert answer["data"]["result"][0]["value"][1] == "3"
        code, out, _ = call(tmp_path / "workspace", "query", "77", "count(up)")  # and a third looks in meanwhile
        assert (code, out.split()[-1]) == (0, "3")
    finally:
        for viewer in viewers:
            viewer.send_signal(signal.SIGINT)
        codes = [end(viewer)[0] for viewer in viewers]
        if mounted:
            subprocess.run(["umount", str(made)], check=True)
    assert codes == [0, 0]
    assert tree_hash(made) == before
