"""What recording costs training: one real run, everything that watches it alternately running and stopped.

"Off" is harder than a run without --observe: agent, collectors, exporter, recorder and Prometheus are all SIGSTOPped
and use no CPU (training does not notice: its output goes to files), so the ratio is the cost of all of it together.
Blocks are short and in the order on, off, off, on; what piled up while stopped is caught up before a block begins. A
block counts with the *mean* of the step times that the trainer measured itself, because a median would not see a
collection that disturbs one step in thirty. One collection takes milliseconds of a step of 90: a step that is half as
long again as usual was made so by the machine, counts as just that long, and how many there are on either side is
printed and tested. Ratios are taken within pairs of neighbouring blocks, and the interval over
pairs. The training process has one core for itself and the watchers may run anywhere, as on a node with more cores than
training threads; with --crowded it computes on every core and each cycle of a watcher is taken from it.
The machine's own speed drifts over seconds: short blocks see less of it.
With --record the trainer is a command of the user's own under `trackwalker record`: what passes its output on is
stopped as well (it says less than a pipe holds meanwhile).
Usage: .venv/bin/python bench/overhead.py [--pairs 120] [--seconds 1.5] [--crowded] [--record]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from paired import is_on, ratio_interval
from usage import cpu_seconds, family

from trackwalker.job import journal
from trackwalker.launch.plan import CONFIG as CONFIG_FILE
from trackwalker.launch.plan import Plan, plan_local
from trackwalker.launch.request.words import ModelSpec, Passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.watch.detect.live import LiveWatch

CONFIG = {"steps": "1000000", "enable_checkpointing": "false", "enable_tensorboard": "false"}
ROOTS = ("agent.pyz", "trackwalker.observe", "trackwalker.node", "trackwalker\0record\0")
WARM_STEPS = 50
START_S = 120.0
SETTLE_S = 0.5
LIMIT = 1.01
CAP = 1.5  # of the median step


class RecordedRun:
    """The same trainer as a command under `trackwalker record`."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        rank = plan.agent.ranks[0]
        self.own = folder / "own"  # where the trainer itself writes
        (self.own / "agent").mkdir(parents=True)
        (self.own / CONFIG_FILE).write_text(plan.config_yaml, encoding="utf-8")
        words = [word.replace(str(plan.agent.job_dir), str(self.own)) for word in rank.argv]
        argv = [sys.executable, "-m", "trackwalker", "record", "--no-verdict", "--workspace", str(folder), "--", *words]
        env = {**os.environ, **plan.env, "TRACKWALKER_HOST": rank.host}
        self._process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while not (found := list(folder.glob("local_*/agent/state.json"))):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit("record did not start the trainer")
            time.sleep(0.2)
        self.job_dir = found[0].parents[1]

    def supervise(self) -> int | None:
        """Its exit code once it has ended."""
        return self._process.poll()

    def cancel(self) -> None:
        """End it."""
        self._process.terminate()

    def wait_closed(self) -> None:
        """It has ended with all that was beside it."""
        self._process.wait(60)


class Watchers:
    """All processes that watch a run: they can be stopped and continued together."""

    def __init__(self, job: Path, job_id: str) -> None:
        state = json.loads((job / "agent" / "state.json").read_text())
        ranks = [int(rank["pid"]) for rank in state["ranks"]]
        roots = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().decode("utf-8", "replace")
                if job_id in words and any(root in words for root in ROOTS):
                    roots.append(int(name))
        self.pids = sorted({pid for root in roots for pid in family(root, ranks)})

    def free(self, cores: set[int]) -> None:
        """Let them run on these cores, with all their threads."""
        for pid in self.pids:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), cores)

    def signal(self, number: int) -> None:
        """Stop or continue all."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def wait_for_steps(run: LocalRun | RecordedRun) -> None:
    """Until training is past its slow beginning."""
    watch, deadline = LiveWatch(run.job_dir), time.monotonic() + START_S
    while (watch.last_step or 0) < WARM_STEPS:
        if run.supervise() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the run did not reach step {WARM_STEPS}: see {run.plan.agent.log}")
        watch.look()
        time.sleep(0.5)


def alternate(watchers: Watchers, pairs: int, seconds: float) -> tuple[list[tuple[float, float]], float]:
    """Begin and end of every block, and the CPU seconds that the watchers used for each second of being on."""
    blocks, used = [], 0.0
    for number in range(2 * pairs):
        watchers.signal(signal.SIGCONT if is_on(number) else signal.SIGSTOP)
        time.sleep(SETTLE_S)
        begin, before = time.time(), cpu_seconds(watchers.pids)
        time.sleep(seconds)
        blocks.append((begin, time.time()))
        used += cpu_seconds(watchers.pids) - before
    return blocks, used / (pairs * seconds)


def main() -> int:
    """Run, alternate, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a block")
    parser.add_argument("--crowded", action="store_true", help="training computes on every core")
    parser.add_argument("--record", action="store_true", help="the trainer is a command under `trackwalker record`")
    options = parser.parse_args()
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        plan = plan_local(ModelSpec("tiny"), 1, Passthrough(CONFIG), Path(folder), True, ["bench"])
        if not options.crowded:
            os.sched_setaffinity(0, {max(cores)})  # inherited: the trainer sizes its thread pool by it
        run = RecordedRun(plan, Path(folder)) if options.record else LocalRun.start(plan)
        os.sched_setaffinity(0, cores)
        watchers = None
        try:
            wait_for_steps(run)
            watchers = Watchers(run.job_dir, str(folder) if options.record else plan.record.id)
            watchers.free(cores)
            blocks, share = alternate(watchers, options.pairs, options.seconds)
        finally:
            if watchers is not None:
                watchers.signal(signal.SIGCONT)
            time.sleep(1.0)
            records = journal.read(run.job_dir / "progress.jsonl").items
            run.cancel()
            while run.supervise() is None:
                time.sleep(0.2)
            run.wait_closed()
    steps = np.array([(float(r["t"]), float(r["seconds"])) for r in records if r.get("phase") == "train"])
    inside = [steps[(steps[:, 0] - steps[:, 1] > a) & (steps[:, 0] < b), 1] for a, b in blocks]
    if min(map(len, inside)) == 0:
        raise SystemExit("a block without a whole step: make the blocks longer (--seconds)")
    cap = CAP * float(np.median(np.concatenate(inside)))
    means = [float(np.minimum(block, cap).mean()) for block in inside]
    on = [means[i] for i in range(len(means)) if is_on(i)]
    off = [means[i] for i in range(len(means)) if not is_on(i)]
    ratio, low, high = ratio_interval(on, off)
    slow = [np.quantile(np.concatenate([b for i, b in enumerate(inside) if is_on(i) == side]), 0.99) for side in (1, 0)]
    where = "all cores" if options.crowded else "one core"
    count = sum(map(len, inside))
    print(f"{count} steps of {np.mean(off):.4f} s on {where}, {options.pairs} pairs of {options.seconds:g} s")
    print(f"watchers: {len(watchers.pids)} processes, {100 * share:.2f} % of one core while on")
    print(f"mean step time on/off: {ratio:.4f}  (95 % interval {low:.4f} .. {high:.4f})")
    print(f"99th percentile of step time on/off: {slow[0] / slow[1]:.3f}  ({slow[0]:.4f} s / {slow[1]:.4f} s)")
    beyond = [[np.count_nonzero(b > cap) for i, b in enumerate(inside) if is_on(i) == side] for side in (True, False)]
    plain = ratio_interval(
        [float(b.mean()) for i, b in enumerate(inside) if is_on(i)],
        [float(b.mean()) for i, b in enumerate(inside) if not is_on(i)],
    )
    print(f"without the cap: {plain[0]:.4f}  ({plain[1]:.4f} .. {plain[2]:.4f})")
    more, less = sum(beyond[0]), sum(beyond[1])
    alike = more - less < 3.0 * max(1.0, more + less) ** 0.5
    print(f"steps beyond {CAP:g} medians: {more} on, {less} off ({'alike' if alike else 'NOT alike'})")
    print(f"{'PASS' if high < LIMIT and alike else 'FAIL'}  upper bound {high:.4f} (below {LIMIT})")
    return 0 if high < LIMIT and alike else 1


if __name__ == "__main__":
    sys.exit(main())
