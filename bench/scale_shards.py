"""A whole recording in parts, for `bench/scale.py --shards N`: real recorders, a job directory, a real agent's payload.

Each recorder is `python -m trackwalker.observe --shard K/N` as a job starts it, with its own Prometheus and part of the
nodes, mirrored into one job directory. Counted is what lies in the job directory at the end, not what Prometheus
says meanwhile. After the measured time one Prometheus and one recorder are killed with signal 9.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from fleet import JOB_ID, Payload, address_of, name_of
from usage import cpu_seconds, family, memory_mb

from trackwalker.job.journal import Journal
from trackwalker.job.processes import free_port, read_stat
from trackwalker.job.shards import Shard, databases
from trackwalker.telemetry.store import open_database

LEAST_TAKEN = 0.9995
MOST_LOST_S = 15.0
FILL_S = 300.0
EACH = 250  # nodes of one fake-target process
KILLED_S = 60.0  # for whom was killed to be back


@dataclass
class Part:
    """One recorder."""

    shard: Shard
    process: subprocess.Popen[bytes]
    cpu_s: float = 0.0
    mb: float = 0.0
    killed: list[str] = field(default_factory=list)

    def pids(self) -> list[int]:
        return family(self.process.pid)


class Recording:
    """A job directory, its targets and its recorders."""

    def __init__(self, folder: Path, options: argparse.Namespace, payload: Payload) -> None:
        self.options, self.payload, self._folder = options, payload, folder
        self.dir, self._local = folder / f"{JOB_ID}-JAX-bench", folder / "local"
        (self.dir / "agent" / "targets").mkdir(parents=True)
        stat = read_stat(os.getpid())
        me = {"pid": os.getpid(), "start": stat.start if stat else 0}
        (self.dir / "agent" / "state.json").write_text(json.dumps({"agent": me, "ranks": []}))
        self.event("rank-start")
        self._fakes = self._serve()
        self.parts = [Part(shard, self.start(shard)) for shard in self.shards]

    @property
    def shards(self) -> list[Shard]:
        return [Shard(n, self.options.shards) for n in range(self.options.shards)]

    def _serve(self) -> list[subprocess.Popen[str]]:
        port, script, fakes = free_port(), Path(__file__).resolve().parent / "fleet.py", []
        for first in range(0, self.options.nodes, EACH):
            count = min(EACH, self.options.nodes - first)
            argv = [sys.executable, str(script), str(self._folder / "payload.om"), str(first), str(count), str(port)]
            env = {**os.environ, "FLEET_COUNTS": str(self._folder / f"counts-{first}")}
            fakes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env))
        for fake in fakes:
            if fake.stdout is None or fake.stdout.readline() != "ready\n":
                raise SystemExit("the fake targets do not start (see above)")
        for number in range(self.options.nodes):
            labels = {"job_id": JOB_ID, "__metrics_path__": "/metrics", "node": name_of(number)}
            groups = [{"targets": [f"{address_of(number)}:{port}"], "labels": labels}]
            (self.dir / "agent" / "targets" / f"{name_of(number)}.json").write_text(json.dumps(groups))
        return fakes

    def start(self, shard: Shard) -> subprocess.Popen[bytes]:
        """A recorder as the job's first node and others start it."""
        argv = [sys.executable, "-m", "trackwalker.observe", "--job-dir", str(self.dir), "--job-id", JOB_ID]
        argv += ["--shard", str(shard), "--interval", str(int(self.options.interval))]
        env = {**os.environ, "TRACKWALKER_LOCAL": str(self._local)}
        with (self.dir / "agent" / f"recorder-{shard.number}.log").open("ab") as out:
            return subprocess.Popen(argv, stdout=out, stderr=out, env=env, start_new_session=True)

    def event(self, kind: str) -> None:
        """What an agent writes into the journal."""
        journal = Journal(self.dir / "events.jsonl")
        journal.append({"kind": kind, "data": {}})
        journal.close()

    def fill(self) -> float:
        """Wait until every node was scraped three times; how long the first time took."""
        begin, first = time.monotonic(), 0.0
        while (least := self._scraped()) < 3:
            if time.monotonic() - begin > FILL_S:
                raise SystemExit(f"after {FILL_S:.0f} s not every node has been scraped: see {self.dir / 'agent'}")
            first = first or (time.monotonic() - begin if least else 0.0)
            time.sleep(1)
        return first

    def _scraped(self) -> int:
        said = [path.read_text() for path in self._folder.glob("counts-*")]
        return min((int(text) for text in said if text), default=0) if len(said) == len(self._fakes) else 0

    def watch(self) -> tuple[float, float, float]:
        """The measured time: from when to when, and cores of the fake targets."""
        before = {part.shard: cpu_seconds(part.pids()) for part in self.parts}
        fakes = cpu_seconds([p.pid for p in self._fakes])
        begin, monotonic = time.time(), time.monotonic()
        while time.monotonic() - monotonic < self.options.seconds:
            time.sleep(2)
            for part in self.parts:
                part.mb = max(part.mb, sum(memory_mb(pid) for pid in part.pids()))
        for part in self.parts:
            part.cpu_s = cpu_seconds(part.pids()) - before[part.shard]
        return (
            begin,
            begin + self.options.seconds,
            (cpu_seconds([p.pid for p in self._fakes]) - fakes) / (time.monotonic() - monotonic),
        )

    def kill(self) -> float:
        """Signal 9 to one Prometheus and to another part's recorder, which is started again as its agent would."""
        moment = time.time()
        children = [pid for pid in self.parts[0].pids() if pid != self.parts[0].process.pid]
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        self.parts[0].killed.append("its Prometheus")
        last = self.parts[-1]
        last.process.kill()
        last.process.wait()
        last.killed.append("the recorder")
        time.sleep(1.0)  # as often as an agent looks
        last.process = self.start(last.shard)
        time.sleep(KILLED_S)
        return moment

    def end(self) -> None:
        """The run is over; the recorders put everything away."""
        self.event("run-end")
        for part in self.parts:
            part.process.wait(120)

    def stop(self) -> None:
        """Whatever happened: nothing of ours stays."""
        for part in self.parts:
            part.process.kill()
            part.process.wait()
        for fake in self._fakes:
            fake.kill()
            fake.wait()


def run(folder: Path, options: argparse.Namespace, text: str) -> int:
    """All of it; 0 where the goals are met."""
    (folder / "payload.om").write_text(text)
    payload = Payload(text)
    recording = Recording(folder, options, payload)
    try:
        filled_s = recording.fill()
        begin, end, fake_cores = recording.watch()
        moment = recording.kill()
        recording.end()
    finally:
        recording.stop()
    whole = recording.dir / "prometheus"
    began = time.monotonic()
    with open_database(whole) as t:
        opened_s = time.monotonic() - began
        up = {labels["node"]: (times, values) for labels, times, values in t.raw("up", begin - 60, time.time())}
        slow = [float(v.max()) for _, _, v in t.raw("scrape_duration_seconds", begin, end) if len(v)]
        damage = t.damage
    due = options.nodes * int(options.seconds / options.interval)
    inside = [v[(ts >= begin) & (ts < end)] for ts, v in up.values()]
    taken, good_ones = sum(map(len, inside)), int(sum(v.sum() for v in inside))
    print(
        f"{options.nodes} nodes x {payload.series} series every {options.interval:g} s for {options.seconds:g} s, "
        f"{options.shards} recorders, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(f"scrapes due {due}, in the job directory {taken} ({100 * taken / due:.3f} %), succeeded {good_ones}")
    print(f"a scrape takes at most {max(slow, default=0):.2f} s; every node seen after {filled_s:.0f} s")
    cores = [part.cpu_s / options.seconds for part in recording.parts]
    print(
        f"recorders: {sum(cores):.2f} cores together, {1000 * sum(cores) / options.nodes:.2f} ms of CPU a second "
        f"for each node; fake targets {fake_cores:.2f} cores"
    )
    sizes = [sum(f.stat().st_size for f in part.rglob("*") if f.is_file()) for part in databases(whole)]
    for part, used, size in zip(recording.parts, cores, sizes, strict=True):
        mine = [name for name in up if part.shard.has(name)]
        lost = max((_gap(up[n][0], moment) for n in mine), default=0.0) - options.interval
        note = f", after kill -9 of {part.killed[0]} {max(0.0, lost):.1f} s lost" if part.killed else ""
        print(f"  shard {part.shard}: {len(mine)} nodes, {used:.3f} cores, {part.mb:.0f} MB, {size / 1e6:.0f} MB{note}")
    gaps = [_gap(times, moment) - options.interval for times, _ in up.values()]
    print(f"read as one database in {opened_s:.1f} s: {len(up)} nodes{'; ' + '; '.join(damage) if damage else ''}")
    fine = taken >= LEAST_TAKEN * due and max(gaps) <= MOST_LOST_S and len(up) == options.nodes
    print(
        f"{'PASS' if fine else 'FAIL'}  taken (at least {100 * LEAST_TAKEN:.2f} %), lost by a kill {max(gaps):.1f} s "
        f"(at most {MOST_LOST_S:.0f} s), every node read"
    )
    return 0 if fine else 1


def _gap(times: np.ndarray, moment: float) -> float:
    """The longest time without a sample around a moment and after it."""
    late = times[times >= moment - 30]
    return float(np.diff(late).max()) if len(late) > 1 else float("inf")
