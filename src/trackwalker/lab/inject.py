"""Real faults for a running local job. Each can be undone, and is undone when its block ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trackwalker.errors import JobNotFoundError
from trackwalker.job.processes import alive

FaultName = Literal["stop", "kill", "cpu", "none"]
# The scheduler's weights (1024, 335, 110): a hog gets three times the victim's share of a core, but a third of another
# rank's, so that only the victim suffers. Two hogs for each core leave it no core to itself.
_HOG_NICE = 5
_VICTIM_NICE = 10


@dataclass(frozen=True)
class Victim:
    """The rank a fault hits."""

    rank: int
    host: str
    pid: int


def find_victim(job_dir: Path, rank: int) -> Victim:
    """The process of a rank of a running local job."""
    try:
        state = json.loads((job_dir / "agent" / "state.json").read_text())
        entry = next(r for r in state["ranks"] if r["rank"] == rank)
        victim = Victim(rank, entry["host"], entry["main"])
        lives = alive(entry["pid"], entry["start"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as e:
        raise JobNotFoundError(f"{job_dir.name} has no running rank {rank}") from e
    if not lives:
        raise JobNotFoundError(f"rank {rank} of {job_dir.name} is not running any more")
    return victim


@contextmanager
def inject(fault: FaultName, victim: Victim) -> Iterator[float]:
    """Break one rank for the length of the block; yields when the fault began."""
    if fault == "stop":
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            yield time.time()
        finally:
            with contextlib.suppress(OSError):
                os.kill(victim.pid, signal.SIGCONT)
    elif fault == "kill":
        os.kill(victim.pid, signal.SIGKILL)
        yield time.time()
    elif fault == "cpu":
        with _hogs(victim):
            yield time.time()
    else:
        yield time.time()


@contextmanager
def _hogs(victim: Victim) -> Iterator[None]:
    """Busy loops on every core that outrank the victim but not the other ranks: its threads wait for a CPU."""
    _set_priority(victim.pid, _VICTIM_NICE)
    spin = "import os\nwhile os.getppid() == " + str(os.getpid()) + ":\n    for _ in range(1000000): pass\n"
    hogs = []
    try:
        for _ in range(2 * (os.cpu_count() or 1)):
            hog = subprocess.Popen([sys.executable, "-c", spin], start_new_session=True)
            hogs.append(hog)
            _set_priority(hog.pid, _HOG_NICE)
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
        _set_priority(victim.pid, 0)


def _set_priority(pid: int, nice: int) -> None:
    """Set the niceness of all threads and of the session's autogroup (where the kernel groups by session)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    try:
        threads = [int(t) for t in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return
    for thread in threads:
        with contextlib.suppress(OSError):  # only root may make a thread more important again
            os.setpriority(os.PRIO_PROCESS, thread, nice)
