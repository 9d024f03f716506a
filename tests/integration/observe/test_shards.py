"""Several recorders of one job: each its own Prometheus and targets, one record; a kill costs one of them seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import pids_with
from recorded_job import Exporter, Job, wait_for

from trackwalker.agent.workspace import listing
from trackwalker.diagnose.case import open_case
from trackwalker.errors import EvidenceError
from trackwalker.job.layout import Job as Layout
from trackwalker.job.shards import Shard, databases
from trackwalker.telemetry.store import open_database

pytestmark = [
    pytest.mark.disturbed_by_load(reason="gaps of a recording are measured in real seconds"),
    pytest.mark.timeout(240),
]
MOST_LOST_S = 15.0
SHARDS, EACH = 3, 4


class Fleet:
    """Twelve targets, four for each of three recorders."""

    def __init__(self, job: Job) -> None:
        self.job, self.exporters = job, dict[str, Exporter]()
        self.recorders: list[subprocess.Popen[bytes]] = []
        folder = job.dir / "agent" / "targets"
        folder.mkdir()
        for shard in self.shards:
            mine = [name for name in (f"gpu{n:05d}" for n in range(100)) if shard.has(name)][:EACH]
            for name in mine:
                exporter = self.exporters[name] = Exporter()
                groups = [{"targets": [exporter.address], "labels": {"job_id": "1", "node": name}}]
                (folder / f"{name}.json").write_text(json.dumps(groups))
        for shard in self.shards:
            self.recorders.append(self.start(shard))

    @property
    def shards(self) -> list[Shard]:
        return [Shard(n, SHARDS) for n in range(SHARDS)]

    def start(self, shard: Shard) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "trackwalker.observe", "--job-dir", str(self.job.dir), "--job-id", self.job.id]
        argv += ["--shard", str(shard), "--interval", "1"]
        env = {**os.environ, "TRACKWALKER_LOCAL": str(self.job.local)}
        with self.job.output.open("ab") as out:
            return subprocess.Popen(argv, stdout=out, stderr=out, env=env, start_new_session=True)

    def seen(self) -> dict[str, np.ndarray]:
        """When each node was seen, as any reader of the job finds it."""
        try:
            with open_database(self.job.dir / "prometheus") as t:
                assert t.damage == []
                return {labels["node"]: times for labels, times, _ in t.raw("scrapes_total", *t.range())}
        except EvidenceError:
            return {}  # nothing was mirrored yet

    def close(self) -> None:
        for recorder in self.recorders:
            recorder.kill()
            recorder.wait()
        for exporter in self.exporters.values():
            exporter.close()


@pytest.fixture
def fleet(tmp_path: Path, prometheus: Path) -> Iterator[Fleet]:
    fleet = Fleet(Job(tmp_path))
    yield fleet
    fleet.close()


def test_a_killed_part_loses_seconds_of_its_own_and_all_parts_are_read_as_one(fleet: Fleet) -> None:
    job = fleet.job
    wait_for(lambda: all(e.scrapes >= 3 for e in fleet.exporters.values()), 60, job.output)
    wait_for(lambda: len(databases(job.dir / "prometheus")) == SHARDS, 20, job.output)
    before = listing(job.dir / "prometheus")
    [prometheus] = pids_with(str(job.local), "-shard1/prometheus --web")
    os.kill(prometheus, signal.SIGKILL)  # one Prometheus ...
    fleet.recorders[2].kill()  # ... and another recorder, whose Prometheus goes with it
    fleet.recorders[2].wait()
    moment = time.time()
    assert fleet.seen().keys() == fleet.exporters.keys()
    fleet.recorders[2] = fleet.start(fleet.shards[2])
    wait_for(lambda: all(len(t) and t[-1] > moment + 2 for t in fleet.seen().values()), 90, job.output)
    assert listing(job.dir / "prometheus") != before
    job.event("run-end")
    for recorder in fleet.recorders:
        assert recorder.wait(30) == 0, job.output.read_text()
    assert list(job.local.iterdir()) == []
    seen = fleet.seen()
    assert seen.keys() == fleet.exporters.keys()
    for shard in fleet.shards:
        gaps = [float(np.diff(seen[name]).max()) for name in seen if shard.has(name)]
        print(f"shard {shard}: at most {max(gaps):.1f} s without samples")
        assert len(gaps) == EACH
        assert max(gaps) <= MOST_LOST_S
    assert [s.name for s in (job.dir / "prometheus").iterdir()] != ["wal"]


def test_a_diagnosis_reads_every_part(fleet: Fleet) -> None:
    job = fleet.job
    wait_for(lambda: all(len(t) >= 3 for t in (fleet.seen() or {"": np.empty(0)}).values()), 90, job.output)
    job.event("run-end")
    for recorder in fleet.recorders:
        assert recorder.wait(30) == 0, job.output.read_text()
    log = job.dir.with_suffix(".log")
    log.write_text("JOB_ID=1\nNNODES=12\n0: completed step: 1, seconds: 1.0, TFLOP/s/device: 1.0, loss: 2.0\n")
    with open_case(Layout("1", log, job.dir)) as case:
        assert case.telemetry is not None
        assert not [line for line in case.damage if "shard" in line]
        assert len(case.telemetry.raw("scrapes_total", *case.telemetry.range())) == SHARDS * EACH


def test_a_part_that_cannot_be_read_is_named_and_the_others_are_read(fleet: Fleet) -> None:
    job = fleet.job
    wait_for(lambda: len(fleet.seen()) == SHARDS * EACH, 90, job.output)
    job.event("run-end")
    for recorder in fleet.recorders:
        assert recorder.wait(30) == 0, job.output.read_text()
    for segment in (fleet.shards[1].database(job.dir) / "wal").iterdir():
        segment.write_bytes(os.urandom(200_000))
    with open_database(job.dir / "prometheus") as t:
        assert any(line.startswith("shard-001") for line in t.damage)
        found = {labels["node"] for labels, _, _ in t.raw("scrapes_total", *t.range())}
    assert found == {name for name in fleet.exporters if not fleet.shards[1].has(name)}
