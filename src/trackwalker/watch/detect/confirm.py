"""A second signal before a hang is called: whether the processes, the GPUs and the network have stopped as well.

The agents are asked directly, over a connection of our own, twice within seconds; on this machine the kernel can be
asked instead. Nobody who could be asked means neither yes nor no.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np

from trackwalker.job.layout import Job
from trackwalker.job.processes import read_stat
from trackwalker.observe.targets import agent_at, groups_in

_APART_S = 3.0
_PATIENCE_S = 2.0
_AT_ONCE, _MOST_NODES = 16, 128
_MOST_READ = 16 << 20
_SAMPLE = re.compile(
    r"^(hw_rank_stopped|hw_rank_up|hw_cpu_seconds_total|hw_gpu_power_watts|hw_gpu_power_limit_watts"
    r"|hw_gpu_utilization_percent|hw_rdma_[rt]x_bytes_total)\{([^}]*)\} (\S+)",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_IDLE_CPU, _BUSY_CPU = 0.1, 0.5  # cores
_QUIET_BYTES, _FLOWING_BYTES = 1e6, 100e6  # a second and host
_TICKS = 100.0
_UNSURE, _AGAINST = 2.0, 4.0  # times the limit, where a second signal is not to be had, or speaks against a hang


@dataclass
class Reading:
    """One look at all ranks that could be looked at."""

    at: float
    stopped: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    cpu: dict[str, float] = field(default_factory=dict)  # host or lane -> seconds used
    bytes: dict[str, float] = field(default_factory=dict)  # host -> over RDMA
    power: dict[tuple[str, str], float] = field(default_factory=dict)  # GPU -> watts
    power_limit: dict[tuple[str, str], float] = field(default_factory=dict)
    busy: dict[tuple[str, str], float] = field(default_factory=dict)  # GPU -> utilisation
    hosts: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing could be learned."""
        return not (self.cpu or self.power or self.stopped or self.gone)


@dataclass(frozen=True)
class Second:
    """The second signal: whether it says hang (None: nobody could say), why, and whom it points at."""

    hang: bool | None
    says: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


def is_hang(second: Second, silent_s: float, limit_s: float) -> bool:
    """Whether a silence beyond its limit may be called a hang, given the second signal."""
    if second.hang:
        return True
    return silent_s > (_UNSURE if second.hang is None else _AGAINST) * limit_s


def second_of(job: Job) -> Second:
    """The second signal of a job."""
    return second_signal(job.dir, job.id)


def second_signal(job_dir: Path | None, job_id: str, sleep: Callable[[float], None] = time.sleep) -> Second:
    """Look twice and judge; takes a few seconds."""
    if job_dir is None:
        return Second(None, "this job has only a log: there is no second signal")
    first = look(job_dir, job_id)
    if first.empty:
        return Second(None, "neither the node agents nor the processes could be asked")
    if not (first.stopped or first.gone):
        sleep(_APART_S)
    return judge(first, look(job_dir, job_id))


def judge(first: Reading, last: Reading) -> Second:
    """What two looks say; the plainest signal first."""
    if last.stopped:
        return Second(True, f"{_ranks(last.stopped)}: the process is stopped (state T)", tuple(sorted(last.stopped)))
    if last.gone:
        return Second(True, f"{_ranks(last.gone)}: the process is gone", tuple(sorted(last.gone)))
    seconds = max(last.at - first.at, 0.1)
    flowing = [(last.bytes[h] - first.bytes[h]) / seconds for h in last.bytes if h in first.bytes]
    if last.power:
        return _by_power(last, flowing)
    used = {h: (last.cpu[h] - first.cpu[h]) / seconds for h in last.cpu if h in first.cpu}
    if not used:
        return Second(None, "what was measured does not tell work from waiting")
    busy = sorted(h for h, share in used.items() if share > _BUSY_CPU)
    if all(share < _IDLE_CPU for share in used.values()):
        return Second(True, f"no rank uses CPU time ({max(used.values()):.2f} cores at most)")
    if busy and len(busy) * 2 < len(used):
        return Second(True, f"{', '.join(busy[:3])} works, the others wait for it", hosts=tuple(busy))
    return Second(False, f"{len(busy)} of {len(used)} ranks are using CPU time")


def _by_power(last: Reading, flowing: list[float]) -> Second:
    shares = [last.power[g] / last.power_limit[g] for g in last.power if last.power_limit.get(g, 0) > 0]
    share = float(np.quantile(shares, 0.9)) if shares else None
    most_busy = max(last.busy.values(), default=0.0)
    if share is not None and share < 0.4 and most_busy > 80:
        return Second(True, f"GPUs report {most_busy:.0f} % utilisation at {100 * share:.0f} % of their power limit")
    if flowing and max(flowing) > _FLOWING_BYTES:
        return Second(False, f"{max(flowing) / 1e6:.0f} MB/s still flow over RDMA")
    if share is not None and float(np.median(shares)) > 0.6:
        return Second(False, f"GPUs draw {100 * float(np.median(shares)):.0f} % of their power limit")
    if flowing and max(flowing) < _QUIET_BYTES:
        return Second(True, "no traffic over RDMA, and GPUs draw little power")
    if share is not None and share < 0.4:
        return Second(True, f"GPUs draw {100 * share:.0f} % of their power limit")
    return Second(None, "what was measured does not tell work from waiting")


def look(job_dir: Path, job_id: str) -> Reading:
    """Ask every agent of the job; where none answers, the kernel of this machine."""
    reading = Reading(time.monotonic())
    targets = _targets(job_dir)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for text in pool.map(lambda target: _fetch(target, job_id), targets[:_MOST_NODES]):
            if text:
                reading.hosts += 1
                take(reading, text)
    if reading.empty:
        _ask_kernel(reading, job_dir)
    return reading


def take(reading: Reading, text: str) -> None:
    """Take in one agent's metrics."""
    for name, labels, value in _SAMPLE.findall(text):
        try:
            label, number = dict(_LABEL.findall(labels)), float(value)
        except ValueError:
            continue
        host, rank, gpu = label.get("host", ""), label.get("rank", ""), (label.get("host", ""), label.get("gpu", ""))
        if name == "hw_rank_stopped" and number and rank.isdigit():
            reading.stopped.add(int(rank))
        elif name == "hw_rank_up" and not number and rank.isdigit():
            reading.gone.add(int(rank))
        elif name == "hw_cpu_seconds_total":
            reading.cpu[host] = number
        elif name.startswith("hw_rdma"):
            reading.bytes[host] = reading.bytes.get(host, 0.0) + number
        elif name == "hw_gpu_power_watts":
            reading.power[gpu] = number
        elif name == "hw_gpu_power_limit_watts":
            reading.power_limit[gpu] = number
        elif name == "hw_gpu_utilization_percent":
            reading.busy[gpu] = number


def _targets(job_dir: Path) -> list[str]:
    files = sorted((job_dir / "agent" / "targets").glob("*.json"))
    return [str(target) for file in files for group in groups_in(file) or () for target in group["targets"]]


def _fetch(target: str, job_id: str) -> str:
    """An agent's metrics, empty when it does not answer or is another job's."""
    job, body = agent_at(target, "/metrics", _MOST_READ, _PATIENCE_S) or ("", b"")
    return body.decode("utf-8", "replace") if job == quote(job_id) else ""


def _ask_kernel(reading: Reading, job_dir: Path) -> None:
    try:
        state = json.loads((job_dir / "agent" / "state.json").read_bytes())
        ranks = [(int(r["rank"]), int(r.get("main") or r["pid"])) for r in state["ranks"]]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for rank, pid in ranks:
        stat = read_stat(pid)
        if stat is None or stat.state in "ZX":
            continue  # perhaps another machine's process: nothing can be said of it
        if stat.state in "Tt":
            reading.stopped.add(rank)
        reading.cpu[f"rank {rank}"] = stat.ticks / _TICKS


def _ranks(ranks: Iterable[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in sorted(ranks))
