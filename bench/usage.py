"""What a process and everything it started costs: CPU time and memory, from /proc."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rfind(")") + 2 :].split()


def family(pid: int, without: Collection[int] = ()) -> list[int]:
    """The process and its live descendants; `without` leaves out some of them, with what they started."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = _fields(int(name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += [child for child in children.get(found[-1], []) if child not in without]
    return found


def cpu_seconds(pids: list[int], ended: bool = True) -> float:
    """User and system time of processes, with that of their children that have ended unless that is not wanted."""
    return sum(sum(map(int, _fields(pid)[11 : 15 if ended else 13])) for pid in pids) * _TICK_S


def memory_mb(pid: int, entry: str = "Rss") -> float:
    """Resident memory of one process (`Rss`), or its share of it (`Pss`: what others map too counts in part)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{entry}:")) / 1024


def reset_peak() -> None:
    """From here on this process' peak of resident memory is counted anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb(pid: int) -> float:
    """The peak of a process' resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
