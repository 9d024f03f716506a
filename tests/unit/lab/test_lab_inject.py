"""Faults hit the right process and are undone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trackwalker.errors import JobNotFoundError
from trackwalker.job.processes import read_stat
from trackwalker.lab.real.inject import Victim, find_victim, inject


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield Victim(2, "box-r2", child.pid, tmp_path)
    child.kill()
    child.wait()


def becomes(question: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 3
    while not question():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def state_of(pid: int) -> str:
    stat = read_stat(pid)
    return stat.state if stat else "gone"


@pytest.mark.starts_processes
def test_stop_is_undone(victim: Victim) -> None:
    with inject("stop", victim) as began:
        assert abs(time.time() - began) < 2
        assert becomes(lambda: state_of(victim.pid) == "T")
    assert becomes(lambda: state_of(victim.pid) == "S")


@pytest.mark.starts_processes
@pytest.mark.parametrize("fault", ["kill", "segfault"])
def test_killed_at_once(victim: Victim, fault: str) -> None:
    with inject(fault, victim):
        assert becomes(lambda: state_of(victim.pid) == "Z")


@pytest.mark.starts_processes
def test_stop_of_one_that_dies_meanwhile_still_ends_well(victim: Victim) -> None:
    with inject("stop", victim):
        os.kill(victim.pid, signal.SIGKILL)
        os.waitpid(victim.pid, 0)


@pytest.mark.starts_processes
def test_hogs_are_gone_and_priorities_restored(victim: Victim) -> None:
    before, usual = set(os.listdir("/proc")), os.getpriority(os.PRIO_PROCESS, victim.pid)
    with inject("cpu", victim):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        fresh = [int(p) for p in children if p not in before]
        hogs = [p for p in fresh if b"trackwalker.lab.real.undo" not in Path(f"/proc/{p}/cmdline").read_bytes()]
        assert len(hogs) == 2 * (os.cpu_count() or 1)
        # The hogs outrank the victim, but not the other ranks.
        assert all(0 < os.getpriority(os.PRIO_PROCESS, h) < os.getpriority(os.PRIO_PROCESS, victim.pid) for h in hogs)
    assert os.getpriority(os.PRIO_PROCESS, victim.pid) == usual
    assert all(state_of(h) == "gone" for h in hogs)


@pytest.mark.starts_processes
def test_find_victim(tmp_path: Path, victim: Victim) -> None:
    stat = read_stat(victim.pid)
    assert stat is not None
    state = tmp_path / "agent" / "state.json"
    state.parent.mkdir()
    entry = {"rank": 2, "host": "box-r2", "pid": victim.pid, "start": stat.start, "main": victim.pid}
    state.write_text(json.dumps({"ranks": [entry]}))
    assert find_victim(tmp_path, 2) == victim
    with pytest.raises(JobNotFoundError, match="no running rank 3"):
        find_victim(tmp_path, 3)
    state.write_text(json.dumps({"ranks": [{**entry, "start": 1}]}))
    with pytest.raises(JobNotFoundError, match="not running any more"):
        find_victim(tmp_path, 2)
    for damage in ("", "{", "[]", "{}", '{"ranks": [{}]}', '{"ranks": [{"rank": 2}]}'):
        state.write_text(damage)
        with pytest.raises(JobNotFoundError, match="no running rank 2"):
            find_victim(tmp_path, 2)
