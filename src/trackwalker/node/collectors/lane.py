"""One rank process and all it forked, reported as a host of its own.

On one machine every rank is a lane (box-r2): the machine's counters cannot tell ranks apart, the scheduler's
per-thread accounting can. Time spent runnable but not running is the direct measure of CPU contention.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from trackwalker.job.processes import read_bytes, read_stat, session_members, threads
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import declared, families

METRICS = declared("lane")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEMBERS_EVERY_S = 5.0  # finding a session's members walks all of /proc: not every second


class LaneCollector:
    """Per-lane process metrics, monotonic across threads that come and go."""

    name = "lane"

    def __init__(self, lanes: Callable[[], list[Lane]], node: str = "") -> None:
        self._lanes, self._node = lanes, node

    def collect(self) -> list[Family]:
        """The families of all lanes."""
        out = families(METRICS)
        hosts: dict[str, list[tuple[Lane, Reading]]] = {}
        for lane in self._lanes():
            rank = str(lane.rank)
            reading = lane.read()
            out["hw_rank_up"].add(1 if reading else 0, host=lane.host, rank=rank)
            if reading is not None:
                out["hw_rank_stopped"].add(reading.stopped, host=lane.host, rank=rank)
                hosts.setdefault(lane.host, []).append((lane, reading))
        for host, there in hosts.items():
            accounted = all(reading.accounted for _, reading in there)
            if host != self._node:  # ranks that have the machine to themselves go by its name, and it counts these
                out["hw_procs_running"].add(sum(reading.running for _, reading in there), host=host)
                out["hw_procs_blocked"].add(sum(reading.blocked for _, reading in there), host=host)
                if accounted:
                    out["hw_context_switches_total"].add(sum(lane.switches for lane, _ in there), host=host)
            if accounted:
                out["hw_cpu_seconds_total"].add(sum(lane.cpu_s for lane, _ in there), host=host)
                out["hw_cpu_wait_seconds_total"].add(sum(lane.wait_s for lane, _ in there), host=host)
            out["hw_mem_rss_bytes"].add(sum(reading.rss for _, reading in there), host=host)
        return list(out.values())


class Reading:
    """One look at a lane."""

    def __init__(self) -> None:
        self.stopped = 0
        self.running = 0
        self.blocked = 0
        self.rss = 0
        self.accounted = False  # whether this kernel keeps the scheduler's per-thread counters


class Lane:
    """Accumulates the scheduler's counters over all threads of one rank's session."""

    def __init__(
        self, rank: int, host: str, session: int, main: int, workload: Callable[[], list[int]] | None = None
    ) -> None:
        self.rank, self.host = rank, host
        self.cpu_s = self.wait_s = 0.0
        self.switches = 0
        self.main = main
        # The session leader is our own shell around the rank: not part of the workload.
        self._workload = workload or (lambda: [p for p in session_members(session) if p != session])
        known = read_stat(main)
        self._start = known.start if known else None
        self.members: list[int] = []  # the rank and all it forked
        self._looked = 0.0
        self._seen: dict[tuple[int, int], tuple[int, int, int]] = {}

    def read(self) -> Reading | None:
        """Read every thread once; None when the rank process is gone."""
        main = read_stat(self.main)
        if main is None or main.state in "ZX" or main.start != self._start:
            return None
        if time.monotonic() - self._looked > _MEMBERS_EVERY_S:
            self.members = self._workload()
            self._looked = time.monotonic()
        reading = Reading()
        reading.stopped = int(main.state in "Tt")
        seen: dict[tuple[int, int], tuple[int, int, int]] = {}
        for pid in self.members:
            statm = (read_bytes(f"/proc/{pid}/statm") or b"").split()
            reading.rss += int(statm[1]) * _PAGE if len(statm) > 1 else 0
            for tid in threads(pid):
                self._read_thread(pid, tid, reading, seen)
        self._seen = seen
        return reading

    def _read_thread(
        self, pid: int, tid: int, reading: Reading, seen: dict[tuple[int, int], tuple[int, int, int]]
    ) -> None:
        stat = read_stat(pid, tid)
        if stat is None:
            return
        reading.running += stat.state == "R"
        reading.blocked += stat.state == "D"
        fields = (read_bytes(f"/proc/{pid}/task/{tid}/schedstat") or b"").split()
        if len(fields) < 3:
            return
        reading.accounted = True
        now = (int(fields[0]), int(fields[1]), int(fields[2]))
        before = self._seen.get((pid, tid), (0, 0, 0))
        self.cpu_s += max(0, now[0] - before[0]) / 1e9
        self.wait_s += max(0, now[1] - before[1]) / 1e9
        self.switches += max(0, now[2] - before[2])
        seen[(pid, tid)] = now
