"""A slow node: the kernel lets a daemon, and everything it starts, have only a share of one CPU."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_PERIOD_US = 100_000
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


def missing() -> str:
    """Why no CPU limit can be set here; empty when it can."""
    if (_V1 / "cpu.cfs_quota_us").exists():
        return "" if os.access(_V1, os.W_OK) else f"{_V1} is read-only: no node can be slowed"
    v2 = _V2 / "cgroup.subtree_control"
    if v2.exists() and "cpu" in v2.read_text().split():
        return "" if os.access(_V2, os.W_OK) else f"{_V2} is read-only: no node can be slowed"
    return "no control groups that limit the CPU: no node can be slowed"


@contextlib.contextmanager
def cpu_limit(pid: int) -> Iterator[Callable[[float | None], None]]:
    """Sets the share of one CPU (None: all) that this process and what it starts from now on have together."""
    old = (_V1 / "cpu.cfs_quota_us").exists()
    root = _V1 if old else _V2
    group = root / f"tw-slow-{pid}"

    def allow(share: float | None) -> None:
        if old:
            (group / "cpu.cfs_quota_us").write_text(str(-1 if share is None else int(share * _PERIOD_US)))
        else:
            (group / "cpu.max").write_text(f"{'max' if share is None else int(share * _PERIOD_US)} {_PERIOD_US}")

    group.mkdir()
    try:
        if old:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cgroup.procs").write_text(str(pid))
        yield allow
    finally:
        allow(None)
        _dissolve(group, root)


def _dissolve(group: Path, root: Path) -> None:
    """Everybody moves back up: a group with members cannot be removed, and one that forks has new ones meanwhile."""
    deadline = time.monotonic() + 20
    while group.exists():
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (root / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()
        assert time.monotonic() < deadline, f"{group} stays in use"
