"""The watcher's memory: killed at any byte of its journal it loses nothing and repeats nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from watched_job import T0, Night, SimJob

from trackwalker.launch.job_state import Standing
from trackwalker.watch.incident import Condition
from trackwalker.watch.memory import BusyError, Memory
from trackwalker.watch.notify.message import Message

VERDICT: dict[str, Any] = {
    "outcome": "incident",
    "status": "hanging",
    "summary": "a hang",
    "roots": [{"cause": "collective-hang", "hosts": ["n1"], "confidence": 0.9}],
    "actions": [],
}


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests kill a process, not a machine: waiting for the disk hundreds of times proves nothing."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class KilledError(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def kill_after(size: int) -> type[Memory]:
    """A memory whose process is killed once its journal has grown by `size` bytes, in the middle of a write."""

    class Mortal(Memory):
        left = size

        def _open(self, path: Path) -> Any:
            journal = super()._open(path)
            whole = journal.copy

            def copy(line: bytes) -> None:
                if len(line) + 1 <= Mortal.left:
                    Mortal.left -= len(line) + 1
                    whole(line)
                    return
                with path.open("ab") as torn:
                    torn.write(line[: Mortal.left])
                os.close(self._lock)  # what the kernel does when a process dies
                raise KilledError

            journal.copy = copy
            return journal

    return Mortal


def an_evening(night: Night, kill_at: int | None) -> list[tuple[float, str]]:
    """A hang that resolves, a failed rank, the end; the watcher is killed once and started again at the same moment."""
    job = SimJob(night.workspace)
    night.memory_type = kill_after(kill_at) if kill_at is not None else Memory
    plan: list[tuple[float, Any]] = [(T0, lambda: None), (T0 + 61, lambda: job.steps(T0, 1.0, 60))]
    plan += [(T0 + 60 + s, lambda: None) for s in (15, 17, 40)]
    plan += [(T0 + 105, lambda: job.steps(T0 + 100, 1.0, 4))]
    plan += [(T0 + 108, lambda: job.event(T0 + 107, "first-failure", 1, exit=1, cause="exited with 1"))]
    plan += [(T0 + 110, lambda: night.asker.now.update({"77": Standing("failed", True, 1, "failed with exit code 1")}))]
    plan += [(T0 + 112, lambda: None), (T0 + 140, lambda: None)]
    for now, happens in plan:
        happens()
        try:
            night.look(now)
        except KilledError:
            night.daemon, night.memory_type = None, Memory
            night.look(now)
    night.stop()
    return [(m.time, key) for key, m in night.box.messages.items()]


def test_a_kill_at_any_record_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    whole = Night(tmp_path / "whole", verdict=VERDICT)
    expected = an_evening(whole, None)
    assert [key for _, key in expected] == [
        "77-hang-1:opened",
        "77-hang-1:resolved",
        "77-failure-1:opened",
        "77-ended-1:opened",
    ]
    lines = (whole.workspace / ".watch" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    # Before a record and within it: its other bytes read the same (below).
    cuts = sorted({cut for end, line in zip(ends, lines, strict=True) for cut in (end - len(line), end - 9)})
    for cut in cuts:
        night = Night(tmp_path / f"cut-{cut}", verdict=VERDICT)
        told = an_evening(night, cut)
        assert sorted(k for _, k in told) == sorted(k for _, k in expected), f"killed at byte {cut}"


def test_a_journal_cut_at_any_byte_is_its_whole_records(tmp_path: Path) -> None:
    night = Night(tmp_path / "whole")
    an_evening(night, None)
    raw = (night.workspace / ".watch" / "journal.jsonl").read_bytes()

    def state(data: bytes) -> str:
        folder = tmp_path / "cut"
        folder.mkdir(exist_ok=True)
        (folder / "journal.jsonl").write_bytes(data)
        memory = Memory(folder, T0)
        memory.close()
        return repr((memory.incidents, memory.jobs, memory._unsaid, memory.since))

    at_ends = {0: state(b"")}
    for cut in range(1, len(raw) + 1):
        # A record is whole with its last brace; the newline adds nothing.
        end = cut + 1 if raw[cut : cut + 1] == b"\n" else raw.rfind(b"\n", 0, cut) + 1
        if end not in at_ends:
            at_ends[end] = state(raw[:end])
        if cut % 101 == 0 or cut in (end, end - 1):
            assert state(raw[:cut]) == at_ends[end], cut


def test_a_message_decided_on_before_a_kill_is_handed_over_after_it(tmp_path: Path) -> None:
    memory = Memory(tmp_path, T0)
    incident = memory.open("77", Condition("hang", "no step", T0), T0)
    message = Message(key="k", thread="t", severity="critical", kind="hang", title="x", time=T0)

    def die(message: Message) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        memory.say(message, die, T0, id=incident.id, told=True)
    memory.close()
    again = Memory(tmp_path, T0 + 5)
    assert again.incidents[incident.id].told
    put: list[str] = []
    again.repeat(lambda m: put.append(m.key))
    again.repeat(lambda m: put.append(m.key))
    again.close()
    assert put == ["k"]


def test_a_second_watcher_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    memory = Memory(tmp_path, T0)
    with pytest.raises(BusyError, match=r"another watcher \(process \d+\)"):
        Memory(tmp_path, T0)
    memory.close()
    Memory(tmp_path, T0).close()


def test_a_long_journal_is_made_short_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(tmp_path, T0)
    incident = memory.open("77", Condition("hang", "no step", T0), T0)
    for i in range(50):
        memory.change(incident, T0 + i, seen=f"look {i}")
    memory.see("77", ended=False, path="p")
    memory.close()
    before = (tmp_path / "journal.jsonl").stat().st_size
    monkeypatch.setattr("trackwalker.watch.memory.LONG", 100)
    again = Memory(tmp_path, T0 + 100)
    again.close()
    assert (tmp_path / "journal.jsonl").stat().st_size < before / 5
    assert (again.incidents, again.jobs, again.since) == (memory.incidents, memory.jobs, T0)


def test_a_secret_that_a_job_printed_is_not_in_the_journal(tmp_path: Path) -> None:
    word = 'a "quoted" token'
    memory = Memory(tmp_path, 0.0, [word, ""])
    memory.open("77", Condition("failure", f"rank 0 said {word}", 1.0), 2.0)
    memory.close()
    again = Memory(tmp_path, 3.0)
    assert again.incidents["77-failure-1"].title == "rank 0 said ***"
    again.close()
