"""One log file for each of many ranks: an incident among them, read by triage, timed; for bench/triage.py --ranks.

Every rank writes step lines, library chatter and now and then a harmless warning. One rank fails in its own words, the
others lose it within seconds and say so in theirs; each host's clock is off by up to a second and a half. Two shapes: a
job directory as Kubernetes leaves it (a log of rank 0, `rank-N.log` of the others), and a bare folder of rank files.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

GPUS = 8
SKEW_S = 1.5
SECONDS = 60.0
BEGIN = 1_790_000_000.0
_CHILD = """
import json, resource, sys, time
from pathlib import Path
from trackwalker.diagnose.triage import triage
from trackwalker.job.resolve import resolve
began = time.perf_counter()
found = triage(resolve(sys.argv[1], Path(".")))
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({"seconds": time.perf_counter() - began, "cpu": sum(u.ru_utime + u.ru_stime for u in used),
                  "mb": [u.ru_maxrss / 1024 for u in used], "cause": found.primary.cause if found.primary else None,
                  "rank": found.roles.first_rank, "host": found.roles.first_host, "files": len(found.index.files),
                  "bytes": found.index.size}))
"""


@dataclass(frozen=True)
class Incident:
    """What happens to whom."""

    ranks: int
    culprit: int
    shape: str  # "job" or "folder"

    @property
    def host(self) -> str:
        return host_of(self.culprit)


def host_of(rank: int) -> str:
    return f"gpu{rank // GPUS:05d}"


def write(folder: Path, incident: Incident, size: int) -> Path:
    """The files; what to call the job."""
    rng = random.Random(incident.culprit)  # noqa: S311
    skew = [rng.uniform(-SKEW_S, SKEW_S) for _ in range(-(-incident.ranks // GPUS))]
    lines = _ordinary(size)
    end = BEGIN + len(lines)
    own = folder / ("90001-JAX-bench" if incident.shape == "job" else "logs")
    own.mkdir(parents=True)
    for rank in range(incident.ranks):
        name = f"rank-{rank}.log" if rank or incident.shape == "folder" else f"../{own.name}.log"
        off = skew[rank // GPUS]
        if rank % GPUS == 0:  # one clock for the ranks of a host
            said = "\n".join(f"{_stamp(BEGIN + i + off)} {line}" for i, line in enumerate(lines))
        text = said.replace("HOST", host_of(rank)).replace("RANK", f"{rank:05d}")
        (own / name).write_text(f"{text}\n{_last_words(incident, rank, end, off, rng)}")
    return own


def _ordinary(size: int) -> list[str]:
    rng = random.Random(1)  # noqa: S311
    lines: list[str] = ["HOST:88:99 [0] NCCL INFO comm 0x55 rank RANK nranks 10000 cudaDev 0 - Init COMPLETE"]
    step, length = 0, 0
    while length < size:
        line = (
            f"completed step: {step}, seconds: {30 + rng.random():.3f}, TFLOP/s/device: 812.345, MFU: 32.49%, "
            f"Tokens/s/device: {2034 + rng.random():.3f}, total_weights: 262144, loss: {9 + rng.random():.3f}"
        )
        lines.append(line)
        if step % 5 == 0:
            lines.append("HOST:88:99 [0] NCCL INFO Channel 00/0 : 3[3] -> 5[4] via P2P/IPC")
        if step % 500 == 0:
            lines.append("WARNING: the tokenizer has no padding token, falling back to the end token")
        step += 1
        length = sum(map(len, lines[-3:])) + length if step % 5 == 1 else length + len(line)
    return lines


def _last_words(incident: Incident, rank: int, end: float, off: float, rng: random.Random) -> str:
    if rank == incident.culprit:
        return f"{_stamp(end + off)} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    at = end + off + 2.0 + rng.random()
    return (
        f"{_stamp(at)} [rank{rank}]: torch.distributed.DistBackendError: NCCL error: remote process exited or there "
        f"was a network error\n{_stamp(at)} ncclRemoteError: A call failed possibly due to a network error or a "
        f"remote process exiting prematurely.\n"
    )


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def measure(folder: Path, ranks: int, mb: float) -> bool:
    """Both shapes, each with another culprit; whether the answers and the time are right."""
    good = True
    for shape, culprit in (("job", ranks * 7 // 10), ("folder", ranks - 3)):
        incident = Incident(ranks, culprit, shape)
        began = time.perf_counter()
        job = write(folder / shape, incident, int(mb * 1e6))
        made_s = time.perf_counter() - began
        run = subprocess.run([sys.executable, "-c", _CHILD, str(job)], check=True, stdout=subprocess.PIPE, text=True)
        ours = json.loads(run.stdout)
        right = ours["rank"] == culprit and ours["host"] == incident.host and ours["cause"] == "oom-gpu"
        fine = right and ours["seconds"] <= SECONDS and ours["files"] == ranks
        good &= fine
        print(
            f"{ours['files']} rank files ({shape}), {ours['bytes'] / 1e9:.2f} GB, written in {made_s:.0f} s: first "
            f"failing rank {ours['rank']} on {ours['host']}, {ours['cause']} ({'right' if right else 'WRONG'})"
        )
        print(
            f"  triage {ours['seconds']:.2f} s (goal {SECONDS:.0f}), cpu {ours['cpu']:.2f} s, peak memory "
            f"{ours['mb'][0]:.0f} MB, of a helper {ours['mb'][1]:.0f} MB, load {os.getloadavg()[0]:.1f} on "
            f"{os.cpu_count()} cores: {'PASS' if fine else 'FAIL'}"
        )
        subprocess.run(["rm", "-rf", str(folder / shape)], check=True)
    return good
