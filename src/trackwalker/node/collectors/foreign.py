"""Who else uses the machine's CPUs: CPU time of processes that are not this job's, by their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable

from trackwalker.job.processes import all_pids, read_bytes, read_stat
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import declared, families

METRICS = declared("foreign")
EVERY_S = 5.0  # walks all of /proc
_TICK = os.sysconf("SC_CLK_TCK")
_NAMES = 24  # and no more series than this: what comes later is added up as OTHERS
OTHERS = "(others)"
_LEAST = 0.01  # of a CPU since the last look: who uses less is nobody's trouble


class ForeignCpuCollector:
    """Adds up what foreign processes used between two looks; one that begins and ends in between is not seen."""

    name = "foreign"

    def __init__(
        self, node: str, sessions: Iterable[int], job_dir: str, members: Callable[[], Collection[int]] = tuple
    ) -> None:
        """`members` are processes of the job that have no session of their own."""
        self._node, self._job_dir, self._members = node, job_dir.encode(), members
        self._own = {os.getsid(0), *sessions}  # the agent and the ranks, with all they forked
        self._seen: dict[tuple[int, int], int] = {}
        self._used: dict[str, float] = {}
        self._looked = False

    def collect(self) -> list[Family]:
        """One series for each foreign program that used a CPU noticeably since the job began."""
        seen: dict[tuple[int, int], int] = {}
        members = self._members()
        for pid in all_pids():
            entry = read_stat(pid)
            if entry is None or entry.session in self._own or pid in members:
                continue
            key = (pid, entry.start)
            seen[key] = entry.ticks
            used = (entry.ticks - self._seen.get(key, 0 if self._looked else entry.ticks)) / _TICK
            if used > _LEAST and not (self._ours(pid) or self._ours(entry.parent)):
                name = entry.name if entry.name in self._used or len(self._used) < _NAMES else OTHERS
                self._used[name] = self._used.get(name, 0.0) + used
        self._seen, self._looked = seen, True
        out = families(METRICS)
        for name, seconds in sorted(self._used.items()):
            out["hw_foreign_cpu_seconds_total"].add(seconds, host=self._node, process=name)
        return list(out.values())

    def _ours(self, pid: int) -> bool:
        """The job's recorder has the job directory on its command line, and so has what starts its other services."""
        return self._job_dir in (read_bytes(f"/proc/{pid}/cmdline") or b"")
