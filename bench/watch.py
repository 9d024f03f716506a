"""What the watcher costs: so many simulated jobs that train, for so long, in a real process; its CPU share and memory.

python bench/watch.py --jobs 100 --seconds 60 [--ranks 8] [--step 5.0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trackwalker.job.journal import encode
from trackwalker.job.processes import read_stat
from trackwalker.job.run import RankPlace, RunRecord

HISTORY = 300  # steps that are there when the watcher starts
CPU_LIMIT, RSS_LIMIT = 5.0, 150.0  # per cent of a core, MB


class Job:
    """A job directory whose progress grows as a run's does; its agent is this process, so it counts as running."""

    def __init__(self, workspace: Path, number: int, ranks: int, step_s: float, now: float) -> None:
        self.id = f"local_20260101_{number:06d}_ab"
        self.dir = workspace / f"{self.id}-JAX-x"
        (self.dir / "agent").mkdir(parents=True)
        log = workspace / f"{self.dir.name}.log"
        log.touch()
        (self.dir / "log").symlink_to(f"../{log.name}")
        self._ranks, self._step_s, self._step = ranks, step_s * random.uniform(0.8, 1.2), 0  # noqa: S311
        places = [RankPlace(rank=r, host=f"n{r}", node=f"n{r}") for r in range(ranks)]
        RunRecord(
            id=self.id, name="JAX-x", model="x", scheduler="local", trainer="tiny", created=now, argv=[], command=[],
            ranks=places, workspace=".",
        ).save(self.dir / "run.json")  # fmt: skip
        me = read_stat(os.getpid())
        members = {"agent": {"pid": os.getpid(), "start": me.start if me else 0}, "ranks": []}
        (self.dir / "agent" / "state.json").write_text(json.dumps(members))
        self.due = now - HISTORY * self._step_s
        self._out = (self.dir / "progress.jsonl").open("ab", buffering=0)
        self.advance(now)

    def advance(self, now: float) -> int:
        """Write the steps that are due; how many records that were."""
        lines = []
        while self.due <= now:
            seconds = self._step_s * random.gauss(1.0, 0.005)
            self.due += seconds
            values = {"step": self._step, "seconds": seconds, "loss": 2.5, "grad_norm": 1.0, "data_wait_s": 0.001}
            lines += [
                encode({"t": self.due - seconds, "rank": r, "host": f"n{r}", "phase": "train", **values})
                for r in range(self._ranks)
            ]
            self._step += 1
        self._out.write(b"".join(lines))
        return len(lines)


def main() -> int:
    """Measure, print, and say whether it is within the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--step", type=float, default=5.0, help="seconds of a step")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watch-bench-") as place:
        workspace = Path(place) / "outputs"
        jobs = [Job(workspace, n, wanted.ranks, wanted.step, time.time()) for n in range(wanted.jobs)]
        argv = [sys.executable, "-m", "trackwalker", "watch", "--all", "--json", "--workspace", str(workspace)]
        said = Path(place) / "said"
        with said.open("wb") as out:
            watcher = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
        try:
            records = _run(jobs, 15.0)  # it starts, and reads what is there
            first, began = cpu_seconds(watcher.pid), time.monotonic()
            records = _run(jobs, wanted.seconds)
            used, took = cpu_seconds(watcher.pid) - first, time.monotonic() - began
            resident, peak = memory(watcher.pid)
        finally:
            watcher.terminate()
            watcher.wait(30)
        text = said.read_text()
    share = 100.0 * used / took
    alarms = text.count(":opened")
    print(f"{wanted.jobs} jobs of {wanted.ranks} ranks, {records / took:.0f} records/s for {took:.0f} s")
    print(f"cpu {share:.2f} % of one core (limit {CPU_LIMIT:g}), memory {resident:.0f} MB, peak {peak:.0f} MB", end=" ")
    print(f"(limit {RSS_LIMIT:g}), {alarms} alarms")
    return 0 if share < CPU_LIMIT and peak < RSS_LIMIT and not alarms else 1


def _run(jobs: list[Job], seconds: float) -> int:
    end, records = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        records += sum(job.advance(time.time()) for job in jobs)
        time.sleep(0.5)
    return records


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> tuple[float, float]:
    """Resident memory and its peak in MB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1e3, int(lines["VmHWM"].split()[0]) / 1e3


if __name__ == "__main__":
    sys.exit(main())
