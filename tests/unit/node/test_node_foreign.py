"""CPU time of processes that are not the job's: by name, never the job's own, a bounded number of series."""

from __future__ import annotations

import pytest

from trackwalker.job.processes import Stat
from trackwalker.node.collectors import foreign
from trackwalker.node.collectors.foreign import OTHERS, ForeignCpuCollector


class Machine:
    """Processes by pid: name, session, ticks; what they have on their command line."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[int, tuple[str, int, int]] = {}
        self.words: dict[int, bytes] = {}
        monkeypatch.setattr(foreign, "all_pids", lambda: iter(list(self.processes)))
        monkeypatch.setattr(foreign, "read_stat", self._stat)
        monkeypatch.setattr(foreign, "read_bytes", lambda path: self.words.get(int(path.split("/")[2])))
        monkeypatch.setattr(foreign, "_TICK", 100)

    def _stat(self, pid: int) -> Stat:
        name, session, ticks = self.processes[pid]
        return Stat(pid, "S", session, 1, name=name, ticks=ticks)


def used(collector: ForeignCpuCollector) -> dict[str, float]:
    (family,) = collector.collect()
    return {dict(labels)["process"]: value for labels, value, *_ in family.samples}


def test_only_what_others_used_since_the_job_began_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.processes = {1: ("stress", 1, 9000), 2: ("python3", 50, 700)}
    collector = ForeignCpuCollector("box", [50], "/jobs/7")
    assert used(collector) == {}
    machine.processes = {1: ("stress", 1, 9150), 2: ("python3", 50, 900), 3: ("make", 7, 40), 4: ("idle", 8, 0)}
    assert used(collector) == {"stress": 1.5, "make": 0.4}


def test_the_recorder_is_ours_by_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.words = {3: b"python\0-m\0trackwalker.observe\0--job-dir\0/jobs/7\0"}
    collector = ForeignCpuCollector("box", [50], "/jobs/7")
    used(collector)
    machine.processes = {3: ("python", 9, 500)}
    assert used(collector) == {}


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    collector = ForeignCpuCollector("box", [], "/jobs/7")
    used(collector)
    machine.processes = {n: (f"p{n}", 1, 100) for n in range(1, 100)}
    names = used(collector)
    assert len(names) == 25
    assert names[OTHERS] == pytest.approx(75.0)
