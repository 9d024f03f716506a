"""What recording costs training: one real run, the watchers alternately running and stopped.

In an "off" block agent, recorder and Prometheus are SIGSTOPped (training does not notice: its output goes to files), in
an "on" block they run. Prints the ratio of step times on/off with a 95 % bootstrap interval over pairs of blocks.
Usage: .venv/bin/python bench/overhead.py [--pairs 12] [--seconds 10] [--procs 1]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from trackwalker.job import journal
from trackwalker.launch.plan import plan_local
from trackwalker.launch.request import ModelSpec, Passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.watch.live import LiveWatch

WATCHERS = ("agent.pyz", "trackwalker.observe", "--storage.tsdb.path")


def watchers_of(job_id: str) -> list[int]:
    """Process ids of everything that watches the job."""
    found = []
    for name in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if name.isdigit() and job_id in words and any(w in words for w in WATCHERS):
            found.append(int(name))
    return found


def main() -> int:
    """Run, alternate, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--procs", type=int, default=1)
    options = parser.parse_args()
    config = {"steps": "1000000", "enable_checkpointing": "false", "enable_tensorboard": "false"}
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        plan = plan_local(ModelSpec("tiny"), options.procs, Passthrough(config), Path(folder), True, ["bench"])
        run = LocalRun.start(plan)
        try:
            watch = LiveWatch(run.job_dir)
            while (watch.last_step or 0) < 30:
                watch.look()
                time.sleep(0.5)
            blocks = []
            for number in range(2 * options.pairs):
                # Order within a pair alternates, so that drift of the machine falls on both sides alike.
                on = (number + number // 2) % 2 == 0
                for pid in watchers_of(plan.record.id):
                    os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)
                time.sleep(1.0)  # what piled up while stopped is caught up outside the measured stretch
                begin = time.time()
                time.sleep(options.seconds)
                blocks.append((on, begin, time.time()))
        finally:
            for pid in watchers_of(plan.record.id):
                os.kill(pid, signal.SIGCONT)
            time.sleep(1.0)
            steps = [r for r in journal.read(run.job_dir / "progress.jsonl").items if r.get("phase") == "train"]
            run.cancel()
            while run.supervise() is None:
                time.sleep(0.2)
            run.wait_closed()
    mine = [(float(r["t"]), float(r["seconds"])) for r in steps if r["rank"] == 0]
    means = [(on, float(np.mean([s for t, s in mine if a + s < t < b]))) for on, a, b in blocks]
    pairs = [sorted(means[i : i + 2], reverse=True) for i in range(0, len(means), 2)]
    ratios = np.array([on[1] / off[1] for on, off in pairs])
    rng = np.random.default_rng(1)
    boot = [float(np.mean(rng.choice(ratios, len(ratios)))) for _ in range(5000)]
    low, high = np.quantile(boot, [0.025, 0.975])
    step = float(np.mean([s for _, s in mine]))
    print(f"{len(mine)} steps of {step:.3f} s, {len(ratios)} pairs of {options.seconds:.0f} s, {options.procs} ranks")
    print(f"step time on/off: {ratios.mean():.4f}  (95 % interval {low:.4f} .. {high:.4f})")
    return 0 if high < 1.01 else 1


if __name__ == "__main__":
    sys.exit(main())
