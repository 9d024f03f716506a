"""Triage against grep on the same file in the same run: python bench/triage.py [--gb 2] [--steps 200000] [--rounds 5]

Generates a 24-rank log of a size, and one of a run of that many steps, in a temporary folder; runs `grep -c` for one
fixed string and triage by turns, and prints the ratio of the medians, the ratio of each round, the processor time of
both and the peak memory of triage (RSS of its one process). A case of 0 is left out. Exits 1 when a target is missed.
With --ranks N --mb M instead: N rank files of M MB, twice, removed in between; who failed first, in which time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rank_files import measure as measure_ranks

RANKS = 24
RATIO_SIZE, RATIO_STEPS = 2.5, 3.0  # times grep; the part that does not grow with the log weighs more in the second
MEGABYTES = 150
_CHILD = """
import json, resource, sys, time
from pathlib import Path
from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job
began = time.perf_counter()
found = triage(Job("bench", Path(sys.argv[1]), None))
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": time.perf_counter() - began, "cpu": usage.ru_utime + usage.ru_stime,
                  "mb": usage.ru_maxrss / 1024, "cause": found.primary.cause if found.primary else None,
                  "steps": len(found.index.steps)}))
"""


def generate(path: Path, size: int, steps: int | None) -> None:
    """A long run as upstream's launcher would have logged it: mostly step lines, some NCCL and glog noise, one OOM."""
    rng = random.Random(1)  # noqa: S311
    nodes = f"node[001-{RANKS:03d}]"
    total = 2 * steps if steps else 10_000_000
    with path.open("w") as f:
        f.write(f"JOB_ID=1\nNNODES={RANKS}\nJOB_NODELIST={nodes}\n== Training BEGIN (no timeout) ==\n")
        f.writelines(f"{r:02d}: Config param steps: {total}\n" for r in range(RANKS))
        step = 0
        while (steps is None and f.tell() < size) or (steps is not None and step < steps):
            lines = []
            for _ in range(100):
                for rank in range(RANKS):
                    lines.append(
                        f"{rank:02d}: completed step: {step}, seconds: {30 + rng.random():.3f}, TFLOP/s/device: 812.345, "  # noqa: E501
                        f"MFU: 32.49%, Tokens/s/device: {2034 + rng.random():.3f}, total_weights: 262144, "
                        f"loss: {9 + rng.random():.3f}\n"
                    )
                    if step % 5 == 0:
                        lines.append(
                            f"{rank:02d}: node{rank + 1:03d}:88:99 [0] NCCL INFO Channel 00/0 : {rank}[3] -> 5[4] via P2P/IPC\n"  # noqa: E501
                        )
                        lines.append(
                            f"{rank:02d}: I1115 00:44:52.1 139872 pjrt_client.cc:99] Enabling async dispatch for {rank}\n"  # noqa: E501
                        )
                step += 1
            f.write("".join(lines))
        f.write("17: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")


@dataclass
class Round:
    """One grep and one triage, one after the other."""

    grep_s: float
    grep_cpu_s: float
    triage_s: float
    triage_cpu_s: float
    command_s: float  # with the start of the interpreter and the imports
    mb: float
    steps: int
    cause: str | None

    @property
    def ratio(self) -> float:
        return self.triage_s / self.grep_s


def one_round(log: Path) -> Round:
    before = _children_cpu_s()
    began = time.perf_counter()
    # With its output to /dev/null grep would stop at the first match.
    subprocess.run(["grep", "-c", "completed step", str(log)], check=True, stdout=subprocess.PIPE)
    grep_s, grep_cpu_s = time.perf_counter() - began, _children_cpu_s() - before
    began = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", _CHILD, str(log)], check=True, stdout=subprocess.PIPE, text=True)
    command_s = time.perf_counter() - began
    ours = json.loads(run.stdout)
    return Round(grep_s, grep_cpu_s, ours["seconds"], ours["cpu"], command_s, ours["mb"], ours["steps"], ours["cause"])


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(name: str, log: Path, rounds: int, most: float) -> bool:
    """Print a case; whether it meets both targets."""
    one_round(log)  # the first one reads from the disk and writes byte code
    found = [one_round(log) for _ in range(rounds)]
    grep_s, triage_s = (statistics.median(getattr(r, k) for r in found) for k in ("grep_s", "triage_s"))
    grep_cpu_s, cpu_s = (statistics.median(getattr(r, k) for r in found) for k in ("grep_cpu_s", "triage_cpu_s"))
    command_s, mb = statistics.median(r.command_s for r in found), max(r.mb for r in found)
    ratio = triage_s / grep_s
    good = ratio <= most and mb <= MEGABYTES and found[0].cause == "oom-gpu"
    print(f"{name}: {log.stat().st_size / 1e9:.2f} GB, {found[0].steps} steps of one rank, found {found[0].cause}")
    print(
        f"  grep {grep_s:.2f} s (cpu {grep_cpu_s:.2f} s), triage {triage_s:.2f} s (cpu {cpu_s:.2f} s), "
        f"the whole command {command_s:.2f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    print(
        f"  ratio {ratio:.2f} (rounds {' '.join(f'{r.ratio:.2f}' for r in found)}; target {most:.1f}), "
        f"peak memory {mb:.0f} MB (target {MEGABYTES}): {'PASS' if good else 'FAIL'}"
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=200_000, help="steps of the second run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=0, help="only this many rank files, each of --mb megabytes")
    parser.add_argument("--mb", type=float, default=1.0, help="megabytes of a rank file")
    parser.add_argument("--folder", help="where to write them (default: the temporary folder)")
    options = parser.parse_args()
    good = True
    if options.ranks:
        with tempfile.TemporaryDirectory(prefix="triage-bench-", dir=options.folder) as folder:
            return 0 if measure_ranks(Path(folder), options.ranks, options.mb) else 1
    with tempfile.TemporaryDirectory(prefix="triage-bench-") as folder:
        log = Path(folder) / "1-JAX-bench.log"
        if options.gb:
            generate(log, int(options.gb * 1e9), None)
            good &= measure("a log of a size", log, options.rounds, RATIO_SIZE)
        if options.steps:
            generate(log, 0, options.steps)
            good &= measure("a long run", log, options.rounds, RATIO_STEPS)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
