"""When the recorder believes that a run is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trackwalker.job.journal import Journal
from trackwalker.job.processes import read_stat
from trackwalker.observe.ending import DEAD_S, SILENT_S, STALLED_S, Ending


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def write_state(job: Path, pid: int, start: int) -> None:
    (job / "agent").mkdir(exist_ok=True)
    state = {"agent": {"pid": pid, "start": start}, "ranks": [{"rank": 0, "pid": None, "start": None}]}
    (job / "agent" / "state.json").write_text(json.dumps(state))


def my_start() -> int:
    stat = read_stat(os.getpid())
    assert stat is not None
    return stat.start


def test_run_end_in_the_events_ends_it(tmp_path: Path, clock: Clock) -> None:
    events, ending = Journal(tmp_path / "events.jsonl"), Ending(tmp_path, clock)
    events.append({"kind": "rank-start"})
    assert ending.reason() is None
    events.append({"kind": "run-end", "data": {"exit": 0}})
    assert ending.reason() == "the run has ended"


def test_events_are_read_only_when_they_grew(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    events, ending = Journal(tmp_path / "events.jsonl"), Ending(tmp_path, clock)
    events.append({"kind": "rank-start"})
    assert ending.reason() is None
    monkeypatch.setattr("trackwalker.job.journal.read", lambda path: pytest.fail("read again"))
    assert ending.reason() is None


def test_a_living_agent_keeps_it_going_for_ever(tmp_path: Path, clock: Clock) -> None:
    write_state(tmp_path, os.getpid(), my_start())
    ending = Ending(tmp_path, clock)
    for _ in range(3):
        assert ending.reason() is None
        clock.now += 10_000


def test_a_reused_pid_is_not_the_agent(tmp_path: Path, clock: Clock) -> None:
    write_state(tmp_path, os.getpid(), my_start() + 1)
    ending = Ending(tmp_path, clock)
    assert ending.reason() is None
    clock.now += DEAD_S + 1
    assert ending.reason() == "neither the agent nor any rank has been alive for 10 s"


@pytest.mark.starts_processes
def test_a_restarted_agent_gets_its_ten_seconds(tmp_path: Path, clock: Clock) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = read_stat(child.pid)
    assert stat is not None
    write_state(tmp_path, child.pid, stat.start)
    ending = Ending(tmp_path, clock)
    assert ending.reason() is None
    child.kill()
    child.wait()
    clock.now += DEAD_S - 1
    assert ending.reason() is None
    write_state(tmp_path, os.getpid(), my_start())
    clock.now += DEAD_S - 1
    assert ending.reason() is None


def test_a_state_unreadable_for_a_moment_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    write_state(tmp_path, os.getpid(), my_start())
    ending = Ending(tmp_path, clock)
    assert ending.reason() is None
    (tmp_path / "agent" / "state.json").write_text('{"agent": ')
    clock.now += SILENT_S * 100
    assert ending.reason() is None


def test_a_launch_that_never_began_ends_it(tmp_path: Path, clock: Clock) -> None:
    ending = Ending(tmp_path, clock)
    clock.now += SILENT_S - 1
    assert ending.reason() is None
    clock.now += 2
    assert ending.reason() == "no rank was started for 60 s"


def test_a_slow_start_is_waited_for_but_not_for_ever(tmp_path: Path, clock: Clock) -> None:
    Journal(tmp_path / "events.jsonl").append({"kind": "stage-begin"})
    ending = Ending(tmp_path, clock)
    assert ending.reason() is None
    clock.now += STALLED_S - 1
    assert ending.reason() is None
    clock.now += 2
    assert ending.reason() == "no rank was started for 600 s"
