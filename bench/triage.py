"""Triage against grep on the same file in the same run: python bench/triage.py [--gb 2] [--steps 0]

Generates a 24-rank log (or, with --steps, a run of that many steps) in a temporary folder, runs `grep -c` for one fixed
string and `trackwalker triage` on it by turns, and prints the ratio of the best times and the peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 24
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=None, help="a run of this many steps instead of a size")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="triage-bench-"))
    try:
        log = folder / "1-JAX-bench.log"
        generate(log, int(options.gb * 1e9), options.steps)
        greps, ours = [], []
        for _ in range(options.rounds):
            began = time.perf_counter()
            subprocess.run(
                ["grep", "-c", "completed step", str(log)], check=True, stdout=subprocess.PIPE
            )  # to /dev/null it would stop at the first match
            greps.append(time.perf_counter() - began)
            run = subprocess.run(
                [sys.executable, "-c", _CHILD, str(log)], check=True, stdout=subprocess.PIPE, text=True
            )
            ours.append(json.loads(run.stdout))
        best = min(ours, key=lambda o: o["seconds"])
        load = os.getloadavg()[0]
        print(f"log {log.stat().st_size / 1e9:.2f} GB, {best['steps']} steps of one rank, found {best['cause']}")
        print(f"grep {min(greps):.2f} s, triage {best['seconds']:.2f} s (cpu {best['cpu']:.2f} s), load {load:.1f}")
        print(f"ratio {best['seconds'] / min(greps):.2f} (target 3), peak memory {best['mb']:.0f} MB (target 300)")
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
