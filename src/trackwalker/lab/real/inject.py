"""Real faults for a running local job. Each can be undone, and is undone when its block ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trackwalker.errors import JobNotFoundError, UsageError
from trackwalker.job.processes import alive, all_pids, read_bytes
from trackwalker.lab.real import network
from trackwalker.lab.real.cgroups import limit_memory, limit_writes
from trackwalker.lab.real.gpu_faults import busy_wait, cap_power, hog_gpu, hog_gpu_memory, lock_clocks
from trackwalker.lab.real.undo import NotHereError, Undo, guarded, note_for, set_priority, start_of
from trackwalker.lab.real.victim import Victim
from trackwalker.trainers.tiny.data import DELAY_FILE

# The scheduler's weights (1024, 335, 110): a hog gets three times the victim's share of a core, but a third of another
# rank's, so that only the victim suffers. Two hogs for each core leave it no core to itself.
_HOG_NICE = 5
_VICTIM_NICE = 10
_LOWEST = 19
_MEMORY_LEFT = 200 << 20  # what a rank may still allocate before the kernel kills it
_WRITES_PER_S = 800 << 10
_LONGEST_BATCH_S = 1.0

MIDDLE = 0.5
Fault = Callable[[Victim, Undo, float], "float | None"]  # victim, way back, strength; when it began, if not at once


def find_victim(job_dir: Path, rank: int) -> Victim:
    """The process of a rank of a running local job."""
    try:
        state = json.loads((job_dir / "agent" / "state.json").read_text())
        entry = next(r for r in state["ranks"] if r["rank"] == rank)
        victim = Victim(rank, entry["host"], entry["main"], job_dir)
        lives = alive(entry["pid"], entry["start"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as e:
        raise JobNotFoundError(f"{job_dir.name} has no running rank {rank}") from e
    if not lives:
        raise JobNotFoundError(f"rank {rank} of {job_dir.name} is not running any more")
    return victim


@contextmanager
def inject(fault: str, victim: Victim, strength: float = MIDDLE) -> Iterator[float]:
    """Break a running job for the length of the block; yields when the fault began.

    `strength`, above 0 and up to 1, counts where a fault can be weaker or stronger.
    """
    if fault not in FAULTS:
        raise UsageError(f"unknown fault '{fault}'; there are: {', '.join(FAULTS)}")
    if not 0 < strength <= 1:
        raise UsageError(f"a fault's strength is above 0 and at most 1, not {strength:g}")
    undo = note_for(victim.job_dir, fault)
    with guarded(undo):
        asked = time.time()
        began = FAULTS[fault](victim, undo, strength)
        yield asked if began is None else began


def _stop(victim: Victim, undo: Undo, strength: float) -> None:
    undo.push("signal", victim.pid, start_of(victim.pid), signal.SIGCONT)
    os.kill(victim.pid, signal.SIGSTOP)


def _kill(victim: Victim, undo: Undo, strength: float) -> None:
    os.kill(victim.pid, signal.SIGKILL)


def _segfault(victim: Victim, undo: Undo, strength: float) -> None:
    os.kill(victim.pid, signal.SIGSEGV)


def _hog_cpus(victim: Victim, undo: Undo, strength: float) -> None:
    """Busy loops on every core that outrank the victim but not the other ranks: its threads wait for a CPU."""
    starve(victim, undo, _VICTIM_NICE, max(1, round(4 * strength * len(os.sched_getaffinity(0)))))


def starve(victim: Victim, undo: Undo, nice: int, loops: int | None = None) -> None:
    """One rank at a lower priority than busy loops on every core, the other ranks at a higher one."""
    usual = os.getpriority(os.PRIO_PROCESS, victim.pid)
    undo.push("renice", victim.pid, start_of(victim.pid), usual)
    set_priority(victim.pid, min(usual + nice, _LOWEST))
    take_cpus(loops or 2 * len(os.sched_getaffinity(0)), undo, min(usual + _HOG_NICE, _LOWEST))


def take_cpus(loops: int, undo: Undo, nice: int = 0) -> None:
    """So many busy loops; they end with this process at the latest."""
    spin = "import os\nwhile os.getppid() == " + str(os.getpid()) + ":\n    for _ in range(1000000): pass\n"
    for _ in range(loops):
        hog = subprocess.Popen([sys.executable, "-c", spin], start_new_session=True)
        undo.push("end", hog.pid, start_of(hog.pid))
        set_priority(hog.pid, nice)


def _starve_memory(victim: Victim, undo: Undo, strength: float) -> None:
    """What the rank holds already stays its own; from now on it gets a little more, then the kernel kills it."""
    limit_memory(victim.pid, _MEMORY_LEFT, _group(victim), undo)


def _slow_disk(victim: Victim, undo: Undo, strength: float) -> None:
    """The disk takes this rank's writes at a crawl; a save waits for it (fsync), other ranks write as ever."""
    limit_writes(victim.pid, victim.job_dir, _WRITES_PER_S, _group(victim), undo)


def _kill_recorder(victim: Victim, undo: Undo, strength: float) -> None:
    os.kill(_service(victim.job_dir, b"trackwalker.observe"), signal.SIGKILL)


def _freeze_exporter(victim: Victim, undo: Undo, strength: float) -> None:
    """The agent stops: its page answers nobody. The ranks write to files and train on."""
    pid = _service(victim.job_dir, b"agent.pyz")
    undo.push("signal", pid, start_of(pid), signal.SIGCONT)
    os.kill(pid, signal.SIGSTOP)


def _lose_packets(victim: Victim, undo: Undo, strength: float) -> None:
    network.impair(victim.pid, undo, loss=0.2)


def _delay_packets(victim: Victim, undo: Undo, strength: float) -> None:
    network.impair(victim.pid, undo, delay_s=0.04)


def _take_link_down(victim: Victim, undo: Undo, strength: float) -> None:
    network.link_down(victim.pid, undo)


def _stall_data(victim: Victim, undo: Undo, strength: float) -> None:
    """The data pipeline of the small trainer waits before each batch for as long as this file says."""
    try:
        config = json.loads((victim.job_dir / "run.json").read_text())["config"]
        folder = Path(config["base_output_directory"]["value"]) / config["run_name"]["value"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise NotHereError(f"{victim.job_dir.name} is no run of the trainer 'tiny': its data cannot be slowed") from e
    path = folder / DELAY_FILE.format(rank=victim.rank)
    folder.mkdir(parents=True, exist_ok=True)
    undo.push("remove", str(path))
    path.write_text(f"{strength * _LONGEST_BATCH_S:.3f}")


def _group(victim: Victim) -> str:
    return f"trackwalker-{victim.job_dir.name}-r{victim.rank}"


def _service(job_dir: Path, word: bytes) -> int:
    """The job's agent or recorder: the process whose command names both the program and the job directory."""
    for pid in all_pids():
        words = (read_bytes(f"/proc/{pid}/cmdline") or b"").split(b"\0")
        named = any(w == word or w.endswith(b"/" + word) for w in words)
        if named and any(str(job_dir).encode() in w for w in words):
            return pid
    raise JobNotFoundError(f"{job_dir.name} has no running {word.decode()}")


FAULTS: dict[str, Fault] = {
    "stop": _stop,
    "kill": _kill,
    "segfault": _segfault,
    "cpu": _hog_cpus,
    "oom": _starve_memory,
    "slow-disk": _slow_disk,
    "packet-loss": _lose_packets,
    "packet-delay": _delay_packets,
    "link-down": _take_link_down,
    "data-stall": _stall_data,
    "power-cap": cap_power,
    "lock-clocks": lock_clocks,
    "gpu-hog": hog_gpu,
    "busy-wait": busy_wait,
    "gpu-memory-hog": hog_gpu_memory,
    "kill-recorder": _kill_recorder,
    "freeze-exporter": _freeze_exporter,
}
