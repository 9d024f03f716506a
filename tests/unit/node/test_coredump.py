"""Core dumps: only real ones, only ours, whole ones, under a name that says whose they are."""

from __future__ import annotations

import os
import struct
import threading
import time
from pathlib import Path

import pytest

from trackwalker.node.evidence import coredump
from trackwalker.node.evidence.coredump import CoreFile, read_core


def core_bytes(pid: int, name: str = "python3", program: str = "/no/such/python3.11", memory: int = 4096) -> bytes:
    """A small core file as the kernel writes it: head, notes, memory."""

    def note(kind: int, body: bytes) -> bytes:
        return struct.pack("<III", 5, len(body), kind) + b"CORE\0\0\0\0" + body + b"\0" * (-len(body) % 4)

    psinfo = bytes(24) + struct.pack("<iiii", pid, 1, 1, 1) + name.encode().ljust(16, b"\0") + bytes(80)
    mapped = struct.pack("<QQ", 1, 4096) + struct.pack("<QQQ", 0, 4096, 0) + program.encode() + b"\0"
    notes = note(1, bytes(336)) + note(3, psinfo) + note(0x46494C45, mapped)
    start = 64 + 2 * 56
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 4, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    rows = struct.pack("<IIQQQQQQ", 4, 0, start, 0, 0, len(notes), 0, 4)
    rows += struct.pack("<IIQQQQQQ", 1, 6, start + len(notes), 0, 0, memory, memory, 4096)
    return head + rows + notes + bytes(memory)


def collect(
    job_dir: Path, pids: dict[int, int], *folders: Path, started: float = 0.0, wait_s: float = 5.0
) -> tuple[list[coredump.Collected], list[str]]:
    lines: list[str] = []
    found = coredump.collect(job_dir, "8308", "node1", started, pids, folders, lines.append, wait_s, interval_s=0.05)
    return found, lines


def test_a_core_says_who_it_was(tmp_path: Path) -> None:
    data = core_bytes(4711)
    (tmp_path / "core").write_bytes(data)
    assert read_core(str(tmp_path / "core")) == CoreFile(4711, "python3", "/no/such/python3.11", len(data))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"import core\n" * 20, core_bytes(1)[:40], bytes(5000)])
def test_what_is_no_core_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "core").write_bytes(data)
    assert read_core(str(tmp_path / "core")) is None


def test_a_core_gets_the_name_of_its_rank(tmp_path: Path) -> None:
    job, work = tmp_path / "job", tmp_path / "work"
    job.mkdir()
    work.mkdir()
    (work / "core.4711").write_bytes(core_bytes(4711))
    os.utime(work / "core.4711", (1700000000, 1700000000))
    found, lines = collect(job, {4711: 3}, work)
    assert [c.path.name for c in found] == ["core.8308.1700000000.3.node1.python3.4711"]
    assert found[0].path.is_file()
    assert found[0].whole
    assert not list(work.iterdir())
    assert lines[0] == "[coredump] Write complete: 0 MB after 0s"
    # Its program is inside an image that is not here: the line says how to get the backtrace.
    assert "gdb -batch -ex bt /no/such/python3.11" in lines[1] or "gdb is not installed" in lines[1]


def test_only_cores_of_our_own_processes_are_taken_from_a_shared_folder(tmp_path: Path) -> None:
    job, work = tmp_path / "job", tmp_path / "work"
    job.mkdir()
    work.mkdir()
    (work / "core.1").write_bytes(core_bytes(1))  # somebody else's
    (work / "core.py").write_text("import this\n")
    (work / "core.old").write_bytes(core_bytes(4711))
    os.utime(work / "core.old", (1000, 1000))
    (job / "core").write_bytes(
        core_bytes(7)
    )  # numbered inside a container: in the job directory it is ours all the same
    (job / "core.8308.5.0.node2.python3.4711").write_bytes(core_bytes(4711))  # another node's, already named
    found, _ = collect(job, {4711: 0}, work, started=time.time() - 60)
    assert [c.path.name.split(".")[3:] for c in found] == [["x", "node1", "python3", "7"]]
    assert sorted(p.name for p in work.iterdir()) == ["core.1", "core.old", "core.py"]


def test_a_core_that_is_still_written_is_waited_for(tmp_path: Path) -> None:
    data = core_bytes(9, memory=1 << 20)
    path = tmp_path / "core"
    path.write_bytes(data[:4096])

    def write_on() -> None:
        with path.open("ab", buffering=0) as out:
            for at in range(4096, len(data), 1 << 16):
                out.write(data[at : at + (1 << 16)])
                time.sleep(0.01)

    writer = threading.Thread(target=write_on)
    writer.start()
    found, lines = collect(tmp_path, {9: 0})
    writer.join()
    assert found[0].whole
    assert found[0].path.stat().st_size == len(data)
    assert lines[0] == f"[coredump] Core dump detected in {tmp_path} — waiting for write to finish (timeout 5s)..."
    assert lines[1].startswith("[coredump] Write complete: 1 MB after ")


def test_a_core_that_is_never_whole_is_kept_and_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "core").write_bytes(core_bytes(9, memory=1 << 20)[:8192])
    found, lines = collect(tmp_path, {9: 0})
    assert not found[0].whole
    assert any("stopped at 8192 of" in line for line in lines)
    (tmp_path / "core").write_bytes(core_bytes(10, memory=1 << 20)[:8192])
    found, lines = collect(tmp_path, {10: 0}, wait_s=0.0)
    assert any(line.endswith("— core dump may be incomplete") for line in lines)


def test_cores_that_are_piped_away_are_announced(tmp_path: Path) -> None:
    pattern = tmp_path / "core_pattern"
    pattern.write_text("|/usr/lib/systemd/systemd-coredump %P\n")
    lines = coredump.enable(pattern)
    assert lines[0] == "[coredump] setup_mode=best_effort"
    assert any("cores go to a program (/usr/lib/systemd/systemd-coredump)" in line for line in lines)
