"""Which process is which: a pid together with its start time, and whether it still lives.

Standard library only and Python 3.9 syntax: the node agent carries this file.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from trackwalker.job.whole import read_whole


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/<pid>/stat that we use."""

    pid: int
    state: str
    session: int
    start: int  # clock ticks since boot: with the pid it names a process for good
    parent: int = 0
    name: str = ""
    ticks: int = 0  # of CPU time
    pages: int = 0  # resident


def read_stat(pid: int, task: int | None = None) -> Stat | None:
    """State, session and start time of a process or of one of its threads."""
    path = f"/proc/{pid}/task/{task}/stat" if task is not None else f"/proc/{pid}/stat"
    raw = read_bytes(path)
    if raw is None:
        return None
    # The command name may hold spaces and parentheses: the fields start after the last ')'.
    fields = raw[raw.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    name = raw[raw.find(b"(") + 1 : raw.rfind(b")")].decode("utf-8", "replace")
    ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21]) if len(fields) > 21 else 0
    return Stat(pid, fields[0].decode(), int(fields[3]), int(fields[19]), int(fields[1]), name, ticks, pages)


def alive(pid: int, start: int) -> bool:
    """Whether that very process still runs: a reused pid or a zombie does not count."""
    stat = read_stat(pid)
    return stat is not None and stat.start == start and stat.state not in "ZX"


def all_pids() -> Iterator[int]:
    """Every process id visible to us."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def session_members(session: int) -> list[int]:
    """All live processes of a session: its leader and everything it forked."""
    found = []
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is not None and stat.session == session and stat.state not in "ZX":
            found.append(pid)
    return found


def read_bytes(path: str) -> bytes | None:
    """A whole /proc or /sys file, None when it is gone or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts: list[bytes] = []
        while True:
            part = os.read(fd, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(fd)


def live_members(state: dict[str, Any]) -> bool:
    """Whether the agent or any rank named in an agent/state.json still runs on this machine."""
    ranks = state.get("ranks")
    members = [state.get("agent"), *(ranks if isinstance(ranks, list) else [])]
    return any(alive(*named) for named in map(process_of, members) if named)


def process_of(member: Any) -> Optional[tuple[int, int]]:
    """Pid and start time of a member of a state file; None where the file does not name a process."""
    if not isinstance(member, dict):
        return None
    pid, start = member.get("pid"), member.get("start")
    if type(pid) is not int or type(start) is not int or not 0 < pid < 1 << 31:  # a bool is an int, and no pid
        return None
    return pid, start


def is_live(state_file: Path | None) -> bool:
    """The same from the file itself; a missing or torn one means no."""
    if state_file is None:
        return False
    try:
        return live_members(json.loads(read_whole(state_file)))
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def spawn(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that it may outlive us; what it prints is added to a log."""
    with log.open("ab") as out:
        return subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def marked_members(mark: bytes, since: int) -> list[int]:
    """Live processes no older than a start time whose environment holds an entry, in whatever session they are."""
    found = []
    for pid in all_pids():
        stat = read_stat(pid)
        # Reading the environment of a process that hangs in the kernel can hang the reader.
        if stat is None or stat.start < since or stat.state in "DZX":
            continue
        if mark in (read_bytes(f"/proc/{pid}/environ") or b"").split(b"\0"):
            found.append(pid)
    return found


def threads(pid: int) -> list[int]:
    """Thread ids of a process, empty when it is gone."""
    try:
        return [int(t) for t in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """A process and all below it, in whatever session they are; one whose parent died is no longer below it."""
    found, look = [pid], [pid]
    while look:
        parent = look.pop()
        for thread in threads(parent):
            for child in (read_bytes(f"/proc/{parent}/task/{thread}/children") or b"").split():
                found.append(int(child))
                look.append(int(child))
    return found


def short_hostname() -> str:
    """This machine's name as the `host` label carries it."""
    return os.environ.get("TRACKWALKER_NODE") or socket.gethostname().split(".")[0] or "box"
