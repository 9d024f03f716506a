"""Core dumps: asked for before the ranks start, found, waited for, named and read after one crashed.

The pattern by which the kernel names them belongs to the whole machine: it is read, and changed only when asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATTERN_FILE = Path("/proc/sys/kernel/core_pattern")
_WAIT_S = 900.0  # cores of large ranks have 35-120 GB
_STILL = 10  # looks at a file that does not grow before it is taken as it is
_SAY_EVERY_S = 10.0
_GDB_S = 120.0
_MEGABYTE = 1 << 20


# What a core file says about itself: whether it is one, whether it is whole, which process it was.
_CORE = 4  # e_type of a core
_NOTE = 4  # p_type of the notes
_PSINFO, _FILES = 3, 0x46494C45
_MOST_HEADERS = 1 << 20
_MOST_NOTES = 1 << 26


@dataclass(frozen=True)
class CoreFile:
    """A core file: the process as it numbered itself, its program, and how long the file has to be."""

    pid: int
    name: str
    program: str  # path of the executable, empty when it is not said
    size: int


def read_core(path: str) -> CoreFile | None:
    """The facts of a 64-bit core file; None for anything else, however it is called."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", head, 16)[0] != _CORE:
                return None
            offset, entry, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
            if count == 0xFFFF:  # more mappings than fit: the first section header has the number
                file.seek(struct.unpack_from("<Q", head, 40)[0])
                count = struct.unpack_from("<I", file.read(64), 44)[0]
            if entry != 56 or count > _MOST_HEADERS:
                return None
            file.seek(offset)
            table = file.read(entry * count)
            end, notes = 0, b""
            for at in range(0, len(table) - 55, 56):
                kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", table, at)
                end = max(end, start + length)
                if kind == _NOTE and not notes and length < _MOST_NOTES:
                    file.seek(start)
                    notes = file.read(length)
    except (OSError, struct.error):
        return None
    pid, name, program = _read_notes(notes)
    return CoreFile(pid, name, program, end)


def _read_notes(notes: bytes) -> tuple[int, str, str]:
    pid, name, files, at = 0, "", [], 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        at += 12 + (name_size + 3) // 4 * 4
        body = notes[at : at + size]
        at += (size + 3) // 4 * 4
        if kind == _PSINFO and len(body) >= 56:
            pid = struct.unpack_from("<i", body, 24)[0]
            name = body[40:56].split(b"\0")[0].decode("utf-8", "replace")
        elif kind == _FILES and len(body) >= 16:
            count = struct.unpack_from("<Q", body)[0]
            files = [os.fsdecode(f) for f in body[16 + 24 * count :].split(b"\0") if f]
    # The program is mapped first; its name has at most 15 letters in the process table, and a thread may rename it.
    same = [f for f in files if name and os.path.basename(f).startswith(name)]
    return pid, name, (same or files or [""])[0]


@dataclass(frozen=True)
class Collected:
    """A core that was found and put into the job directory."""

    path: Path
    rank: int | None
    core: CoreFile
    whole: bool
    backtrace: Path | None


def enable(pattern_file: Path = PATTERN_FILE) -> list[str]:
    """Lift this process's limit, and so its children's, to all it may have; returns lines for the log."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    pattern = read_pattern(pattern_file)
    lines = ["[coredump] setup_mode=best_effort", f"[coredump] core_pattern={pattern}"]
    if hard == 0:
        lines.append("[coredump] WARNING: the limit of core files is 0 here and cannot be raised: no core will be kept")
    if pattern.startswith("|"):
        lines.append(
            f"[coredump] WARNING: cores go to a program ({pattern[1:].split(' ')[0]}), not to the job directory"
        )
    return lines


def read_pattern(pattern_file: Path = PATTERN_FILE) -> str:
    """The kernel's pattern; empty where it cannot be read."""
    try:
        return pattern_file.read_text().rstrip("\n")
    except OSError:
        return ""


def collect(
    job_dir: Path,
    job_id: str,
    host: str,
    started: float,
    pids: Mapping[int, int],
    folders: Sequence[Path],
    say: Callable[[str], None],
    wait_s: float = _WAIT_S,
    interval_s: float = 2.0,
) -> list[Collected]:
    """Bring every core of this run into the job directory; `pids` says which process is which rank.

    A core in the job directory is ours. One in another folder is ours only if it is of one of our processes.
    """
    found = []
    deadline = time.monotonic() + wait_s
    for path in _candidates([job_dir, *folders], started):
        core = None if _is_done(path, job_id, host) else read_core(str(path))
        if core is None or (core.pid not in pids and path.parent != job_dir):
            continue
        whole = _wait_whole(path, core, deadline, wait_s, say, interval_s)
        rank = pids.get(core.pid)
        program = re.sub(r"[^A-Za-z0-9_+-]", "_", core.name) or "unknown"
        number = "x" if rank is None else rank
        epoch = int(path.stat().st_mtime)
        kept = _move(path, job_dir / f"core.{job_id}.{epoch}.{number}.{host}.{program}.{core.pid}", say)
        found.append(Collected(kept, rank, core, whole, _backtrace(kept, core, say)))
    return found


def _candidates(folders: Sequence[Path], started: float) -> list[Path]:
    files: dict[Path, float] = {}
    for folder in dict.fromkeys(f.absolute() for f in folders):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    # A second less: file systems round, and shared ones have a clock of their own.
                    written = entry.stat(follow_symlinks=False).st_mtime
                    if entry.name.startswith("core") and entry.is_file(follow_symlinks=False) and written > started - 1:
                        files[Path(entry.path)] = written
    return sorted(files, key=lambda f: files[f])


def _is_done(path: Path, job_id: str, host: str) -> bool:
    """Whether a core has its name already and is another node's, or has its backtrace."""
    named = path.name.startswith(f"core.{job_id}.")
    return named and (f".{host}." not in path.name or path.with_name(path.name + ".txt").exists())


def _wait_whole(
    path: Path, core: CoreFile, deadline: float, wait_s: float, say: Callable[[str], None], interval_s: float
) -> bool:
    """Wait until the file has the length that its own head promises; True when it has."""
    begin, said, last, still = time.monotonic(), 0.0, -1, 0
    while True:
        size = path.stat().st_size
        waited = time.monotonic() - begin
        if size >= core.size:
            say(f"[coredump] Write complete: {size // _MEGABYTE} MB after {waited:.0f}s")
            return True
        still = still + 1 if size == last else 0
        if still >= _STILL:
            say(f"[coredump] WARNING: {path.name} stopped at {size} of {core.size} bytes: limit or disk full")
            return False
        if time.monotonic() > deadline:
            say(f"[coredump] WARNING: Timeout after {waited:.0f}s — core dump may be incomplete")
            return False
        if last < 0:
            bound = f"(timeout {wait_s:.0f}s)"
            say(f"[coredump] Core dump detected in {path.parent} — waiting for write to finish {bound}...")
        elif waited - said >= _SAY_EVERY_S:
            said = waited
            say(f"[coredump] Writing... {size // _MEGABYTE} MB ({waited:.0f}s elapsed)")
        last = size
        time.sleep(interval_s)


def _move(path: Path, target: Path, say: Callable[[str], None]) -> Path:
    if path == target or target.exists():
        return path
    try:
        if path.stat().st_dev != target.parent.stat().st_dev:
            room = shutil.disk_usage(target.parent).free
            if room < path.stat().st_size:
                say(f"[coredump] WARNING: {path} stays where it is: the job directory has no room for it")
                return path
        shutil.move(str(path), str(target))
    except OSError as e:
        say(f"[coredump] WARNING: {path} stays where it is: {e.strerror}")
        return path
    return target


def _backtrace(path: Path, core: CoreFile, say: Callable[[str], None]) -> Path | None:
    """A first backtrace beside the core; where that cannot be had, a line that says how to get one."""
    gdb = shutil.which("gdb")
    command = ["gdb", "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"]
    command += ["-ex", "bt 60", "-ex", "thread apply all bt 15"]
    by_hand = f"gdb -batch -ex bt {core.program or 'PROGRAM'} {path}"
    if gdb is None or not os.path.isfile(core.program):
        reason = "gdb is not installed" if gdb is None else f"{core.program or 'its program'} is not on this machine"
        say(f"[coredump] {path.name}: no backtrace ({reason}); where both are: {by_hand}")
        return None
    target = path.with_name(path.name + ".txt")
    try:
        with target.open("wb") as out:
            subprocess.run(
                [*command, core.program, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=_GDB_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired):
        say(f"[coredump] {path.name}: the backtrace was not finished within {_GDB_S:.0f} s; by hand: {by_hand}")
    first = _first_frame(target)
    say(f"[coredump] {path.name}: {first or 'no frames'}; backtrace in {target.name}")
    return target


def _first_frame(text: Path) -> str:
    with contextlib.suppress(OSError):
        for line in text.read_text(errors="replace").splitlines():
            if line.startswith("#0"):
                return line
    return ""
