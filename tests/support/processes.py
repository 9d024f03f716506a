"""Which processes belong to a job: everything started for it names its directory or carries its id."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path


def processes_of(job_dir: Path, wait_s: float = 15.0) -> list[str]:
    """Command lines of processes that still belong to a job, after giving them time to leave."""
    job_id = job_dir.name.split("-JAX-")[0]
    deadline = time.monotonic() + wait_s
    while True:
        left = _find(job_id)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def pids_with(job_id: str, word: str) -> list[int]:
    """Processes of a job whose command line holds a word."""
    return [int(line.split(" ", 1)[0]) for line in _find(job_id) if word in line]


def end_runs(workspace: Path) -> None:
    """kill -9 of everything that belongs to a local run in this workspace: for what a failing test leaves behind."""
    for job in workspace.glob("local_*/"):
        for pid in pids_with(job.name.split("-JAX-")[0], ""):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def hurry(pids: Iterable[int]) -> None:
    """Usual priority for what runs at the lowest, so that a test need not wait until the machine is idle (as root)."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):  # Linux has a priority for each
                os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def _find(job_id: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            env = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if words and (job_id in words or f"JOB_ID={job_id}".encode() in env):
            found.append(f"{name} {words}")
    return found
