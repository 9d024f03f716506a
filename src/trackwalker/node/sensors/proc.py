"""What /proc says about the processes of a rank."""

from __future__ import annotations

import os

from trackwalker.job.processes import all_pids, read_bytes, read_stat


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
