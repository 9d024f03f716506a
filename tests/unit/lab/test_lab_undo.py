"""What a fault did is written down first and can be put back by anyone, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.job.processes import read_stat
from trackwalker.lab.real import undo as undo_module
from trackwalker.lab.real.cgroups import limit_memory, limit_writes
from trackwalker.lab.real.inject import FAULTS, Victim, inject
from trackwalker.lab.real.undo import NotHereError, note_for, pending, start_of


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The notes of this test only."""
    folder = tmp_path / "notes"
    monkeypatch.setattr(undo_module, "_folder", lambda: folder)
    return folder


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


def state_of(pid: int) -> str:
    stat = read_stat(pid)
    return stat.state if stat else "gone"


@pytest.mark.starts_processes
def test_a_killed_injector_is_cleaned_up_after(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    job = tmp_path / "job"
    note = note_for(job, "stop")
    note.push("signal", sleeper.pid, start_of(sleeper.pid), signal.SIGCONT)
    os.kill(sleeper.pid, signal.SIGSTOP)  # and here the injector dies
    left = pending(job)
    assert [n.path for n in left] == [note.path]
    assert pending(tmp_path / "another-job") == []
    assert left[0].run() == 1
    deadline = time.monotonic() + 3
    while state_of(sleeper.pid) == "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state_of(sleeper.pid) in "RS"
    assert pending(job) == []


@pytest.mark.starts_processes
def test_a_process_number_that_is_anothers_now_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    note = note_for(tmp_path, "cpu")
    note.push("signal", sleeper.pid, start_of(sleeper.pid) + 1, signal.SIGKILL)
    note.run()
    assert sleeper.poll() is None


def test_the_last_thing_done_is_the_first_undone_and_a_failed_step_stops_nothing(tmp_path: Path, notes: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    note = note_for(tmp_path, "x")
    note.push("remove-folder", str(tmp_path / "a"))
    note.push("write", str(tmp_path / "nowhere" / "file"), "1")
    note.push("remove-folder", str(tmp_path / "a" / "b"))
    assert len(json.loads(note.path.read_text())) == 3
    assert note.run() == 3
    assert not (tmp_path / "a").exists()
    assert list(notes.iterdir()) == []
    with pytest.raises(ValueError, match="unknown way back"):
        note.push("forget")


def test_a_damaged_note_undoes_nothing_and_goes(tmp_path: Path, notes: Path) -> None:
    notes.mkdir()
    (notes / f"{tmp_path.name}.stop.1.json").write_text('[["format-disk"]')
    assert [note.run() for note in pending(tmp_path)] == [0]
    assert list(notes.iterdir()) == []


@pytest.mark.starts_processes
def test_memory_ends_where_the_control_group_says(tmp_path: Path) -> None:
    grow = "import sys\nsys.stdin.read(1)\nheld = bytearray(200 << 20)\nheld[::4096] = b'x' * len(held[::4096])\n"
    child = subprocess.Popen([sys.executable, "-c", grow], stdin=subprocess.PIPE)
    note = note_for(tmp_path, "oom")
    try:
        limit_memory(child.pid, 40 << 20, f"trackwalker-test-{os.getpid()}", note)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(20) == -signal.SIGKILL
    except NotHereError as e:
        pytest.skip(str(e))
    finally:
        child.kill()
        child.wait()
        groups = [Path(step[1]) for step in note._steps if step[0] == "remove-folder"]
        note.run()
    assert groups
    assert not groups[0].exists()


@pytest.mark.starts_processes
def test_writes_take_their_time(tmp_path: Path) -> None:
    write = (
        "import os, sys, time\nsys.stdin.read(1)\nfd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "began = time.time()\nos.write(fd, bytes(1 << 20))\nos.fsync(fd)\nprint(time.time() - began)\n"
    )
    command = [sys.executable, "-c", write, str(tmp_path / "file")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    note = note_for(tmp_path, "slow-disk")
    try:
        limit_writes(child.pid, tmp_path, 512 << 10, f"trackwalker-test-{os.getpid()}", note)
        seconds, _ = child.communicate("x", timeout=30)
    except NotHereError as e:
        pytest.skip(str(e))
    finally:
        child.kill()
        child.wait()
        note.run()
    assert float(seconds) > 1.0


@pytest.mark.starts_processes
def test_what_is_refused_leaves_nothing_behind(tmp_path: Path, sleeper: subprocess.Popen[bytes], notes: Path) -> None:
    victim = Victim(0, "box-r0", sleeper.pid, tmp_path)
    with pytest.raises(UsageError, match="unknown fault"), inject("gremlins", victim):
        pass
    with pytest.raises(UsageError, match="share the machine's network"), inject("link-down", victim):
        pass
    assert not notes.exists() or list(notes.iterdir()) == []
    assert set(FAULTS) >= {"stop", "kill", "segfault", "cpu", "oom", "slow-disk", "packet-loss", "link-down"}
