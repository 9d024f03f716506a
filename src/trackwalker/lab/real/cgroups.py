"""Kernel limits for one process: memory that ends, a disk that writes slowly. Control groups v1 and v2, as root."""

from __future__ import annotations

import os
from pathlib import Path

from trackwalker.lab.real.undo import NotHereError, Undo

# controller of v1 and its file, controller of v2 and its file, and how each wants the value written
_KNOBS = {
    "memory": ("memory", "memory.limit_in_bytes", "{value}", "memory", "memory.max", "{value}"),
    "writes": ("blkio", "blkio.throttle.write_bps_device", "{disk} {value}", "io", "io.max", "{disk} wbps={value}"),
}


def limit_memory(pid: int, limit: int, name: str, undo: Undo) -> None:
    """Let the kernel kill the process when it (with its threads) holds more than `limit` bytes."""
    _confine(pid, "memory", name, undo, value=limit)


def limit_writes(pid: int, folder: Path, bytes_per_s: int, name: str, undo: Undo) -> None:
    """Let what the process writes to the disk behind `folder` take its time."""
    _confine(pid, "writes", name, undo, value=bytes_per_s, disk=_disk_of(folder))


def _confine(pid: int, knob: str, name: str, undo: Undo, **values: object) -> None:
    root, file, text = _find(knob)
    group = root / name
    back = _group_of(pid, root)
    try:
        undo.push("remove-folder", str(group))
        group.mkdir()
        (group / file).write_text(text.format(**values))
        undo.push("write", str(back / "cgroup.procs"), str(pid))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as e:
        undo.run()
        raise NotHereError(f"this machine lets nobody limit {knob} by control group ({group}: {e.strerror})") from e


def _find(knob: str) -> tuple[Path, str, str]:
    """Where the controller is mounted, its file and the form of its value."""
    first, file1, form1, second, file2, form2 = _KNOBS[knob]
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and first in options.split(","):
            return Path(place), file1, form1
        if kind == "cgroup2" and second in _words(Path(place) / "cgroup.subtree_control"):
            return Path(place), file2, form2
    raise NotHereError(f"this machine has no control group that limits {knob}")


def _group_of(pid: int, root: Path) -> Path:
    controller = root.name
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        group = root / path.lstrip("/")
        if (controller in names.split(",") or not names) and (group / "cgroup.procs").exists():
            return group
    return root


def _disk_of(folder: Path) -> str:
    """major:minor of the whole disk below a folder: partitions cannot be throttled."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    block = Path("/sys/dev/block") / number
    if not block.exists():
        raise NotHereError(f"{folder} is on no disk of its own (an overlay or a memory file system): cannot slow it")
    return (block.resolve().parent / "dev").read_text().strip() if (block / "partition").exists() else number


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
