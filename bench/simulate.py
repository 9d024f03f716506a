"""What a simulated incident costs: 24 nodes x 8 GPUs x 4 h, and 1,000 nodes with bounded memory.

Usage: python bench/simulate.py [NODES…]
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import simulate

SCENARIO = "rdma-phased"  # two phases, four NICs, a distractor
HOURS = 4.0
GOAL = {24: (15.0, 10.0)}  # nodes -> seconds, megabytes


def measure(nodes: int) -> None:
    """Simulate once in this process and print time, size and peak memory."""
    scenario = load_scenario(SCENARIO)
    scenario.world |= {"steps": round(HOURS * 3600 / 38.0)}  # the fault makes some steps slower
    out = Path(tempfile.mkdtemp(prefix="trackwalker-bench-"))
    try:
        begin = time.perf_counter()
        done = simulate(scenario, out / "case", seed=1, nodes=nodes, gpus=8)
        seconds = time.perf_counter() - begin
        size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file() and not p.is_symlink()) / 1e6
    finally:
        shutil.rmtree(out)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    goal = " (goal: {:.0f} s, {:.0f} MB)".format(*GOAL[nodes]) if nodes in GOAL else ""
    print(
        f"{nodes} nodes x 8 GPUs, {done.hours:.1f} h: {seconds:.1f} s, {size:.1f} MB, peak memory {peak:.0f} MB, ",
        end="",
    )
    print(f"{done.samples / 1e6:.1f} M samples{goal}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        measure(int(sys.argv[1]))
    else:
        for wanted in sys.argv[1:] or ["24", "1000"]:
            subprocess.run([sys.executable, __file__, wanted], check=True)  # apart: peak memory is a process's
