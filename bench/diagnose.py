"""What a diagnosis costs, on simulated jobs behind a real Prometheus.

Usage: python bench/diagnose.py [--keep FOLDER] [--small]

Makes 24 nodes x 8 GPUs x 24 h and 250, 500, 1,000 nodes x 8 GPUs x 2 h (kept in FOLDER for the next time), diagnoses
each in a process of its own and prints the time to open the database, the time after that, queries, bytes read and the
peak memory of that process and of its Prometheus; then reads raw numbers by our client and by a plain HTTP read of the
same query. Exits 1 when a target is missed. `--small` takes a tenth of the nodes, to try the bench itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from usage import cpu_seconds, family

from trackwalker.diagnose import case
from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import simulate
from trackwalker.telemetry.store import Telemetry, open_database

SCENARIO = "rdma-phased"  # two slow phases, four bad NICs, an innocent one with old counts
STEP_S = 32.0
ROUNDS = 5
RAW_RATIO = 3.0
GROWTH = 1.25  # seconds may grow this much faster than the samples: a small job has fixed costs that flatter nobody
RAW = ("hw_gpu_power_watts", 'hw_rdma_tx_retx_pkts_total{device="ionic_0"}')


@dataclass(frozen=True)
class Size:
    """One job to diagnose, and what it may cost after its database is open."""

    nodes: int
    hours: float
    seconds: float | None = None
    megabytes: float | None = None

    @property
    def name(self) -> str:
        """How it is called in the table and in the folder."""
        return f"{self.nodes}x8x{self.hours:g}h"


SIZES = (Size(24, 24, 5, 1000), Size(250, 2), Size(500, 2), Size(1000, 2, 60, 4000))


@dataclass(frozen=True)
class Cost:
    """What one diagnosis took."""

    roots: list[str]
    open_s: float
    then_s: float
    queries: int
    bytes_read: int
    own_mb: float
    prometheus_mb: float
    own_cpu_s: float  # what a loaded machine falsifies least
    prometheus_cpu_s: float

    @property
    def megabytes(self) -> float:
        """Both processes' peaks together."""
        return self.own_mb + self.prometheus_mb


def made(size: Size, keep: Path) -> tuple[Path, int]:
    """The job's directory and how many samples it holds; simulated unless it is there already."""
    out = keep / size.name
    note = out / "samples.json"
    if not note.exists():
        scenario = load_scenario(SCENARIO)
        scenario.world |= {"steps": round(size.hours * 3600 / STEP_S)}
        done = simulate(scenario, out, seed=1, nodes=size.nodes, gpus=8)
        note.write_text(json.dumps({"job": done.job.name, "samples": done.samples}))
    known = json.loads(note.read_text())
    return out / "outputs" / known["job"], int(known["samples"])


def measure(job: Path) -> Cost:
    """Diagnose once in this process."""
    opened: list[float] = []
    server: list[tuple[float, float]] = []

    @contextmanager
    def timed(folder: Path) -> Iterator[Telemetry]:
        began = time.perf_counter()
        with open_database(folder) as telemetry:
            opened.append(time.perf_counter() - began)
            yield telemetry
            others = family(os.getpid())[1:]
            server.append((sum(peak_mb(pid) for pid in others), cpu_seconds(others)))

    case.open_database = timed  # type: ignore[assignment]
    found = resolve(str(job), job.parent)
    began = time.perf_counter()
    verdict = diagnose(found).verdict
    whole = time.perf_counter() - began
    return Cost(
        roots=[f"{c.cause}({','.join(c.hosts)})" for c in verdict.roots],
        open_s=opened[0],
        then_s=whole - opened[0],
        queries=verdict.cost.queries,
        bytes_read=verdict.cost.bytes_read,
        own_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        prometheus_mb=server[0][0],
        own_cpu_s=time.process_time(),
        prometheus_cpu_s=server[0][1],
    )


def peak_mb(pid: int) -> float:
    """The highest resident memory a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def raw_ratios(job: Path) -> dict[str, tuple[float, float]]:
    """For each query: seconds of a plain HTTP read of Prometheus' answer, and of our client's arrays, by turns."""
    out = {}
    with open_database(job / "prometheus") as telemetry:
        first, last = telemetry.range()
        for selector in RAW:
            promql = f"{selector}[{round((last - first) * 1000) + 1}ms]"
            asked = {"query": promql, "time": f"{last:.3f}"}
            url = f"{telemetry.url}/api/v1/query"
            alone, ours = [], []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                httpx.post(url, data=asked, timeout=300.0).raise_for_status()  # the address holds a password
                alone.append(time.perf_counter() - began)
                began = time.perf_counter()
                telemetry.raw(selector, first, last)
                ours.append(time.perf_counter() - began)
            out[selector] = (statistics.median(alone), statistics.median(ours))
    return out


def judge(size: Size, cost: Cost) -> list[tuple[bool, str]]:
    """The targets of one size."""
    if size.seconds is None or size.megabytes is None:
        return []
    return [
        (cost.then_s <= size.seconds, f"{size.name}: {cost.then_s:.1f} s after opening (at most {size.seconds:g})"),
        (cost.megabytes <= size.megabytes, f"{size.name}: {cost.megabytes:.0f} MB (at most {size.megabytes:g})"),
    ]


def growth(points: list[tuple[int, float]]) -> tuple[bool, str]:
    """Whether the cost grows no faster than the data, from the smallest to the largest of (samples, seconds)."""
    (small, quick), (large, long) = points[0], points[-1]
    data, cost = large / small, long / quick
    return cost <= GROWTH * data, f"{data:.1f} x the samples cost {cost:.1f} x the time"


def main() -> int:
    """Make, measure, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="keep the simulated jobs here, and use those that are here")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(asdict(measure(args.measure))))
        return 0
    sizes = [Size(max(6, s.nodes // 10), s.hours, s.seconds, s.megabytes) if args.small else s for s in SIZES]
    with tempfile.TemporaryDirectory(prefix="trackwalker-bench-") as temporary:
        keep = args.keep or Path(temporary)
        points, verdicts = [], []
        for size in sizes:
            job, samples = made(size, keep)
            argv = [sys.executable, __file__, "--measure", str(job)]
            cost = Cost(**json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout))
            log_mb = job.with_name(f"{job.name}.log").stat().st_size / 1e6
            print(
                f"{size.name:12} {samples / 1e6:7.1f} M samples, log {log_mb:.0f} MB: opened in {cost.open_s:.1f} s, "
                f"then {cost.then_s:.1f} s (CPU {cost.own_cpu_s:.1f} s + {cost.prometheus_cpu_s:.1f} s of Prometheus), "
                f"{cost.queries} queries, {cost.bytes_read / 1e6:.0f} MB read, "
                f"peak {cost.own_mb:.0f} MB + Prometheus {cost.prometheus_mb:.0f} MB; {'; '.join(cost.roots)}",
                flush=True,
            )
            verdicts += judge(size, cost)
            if size.hours == sizes[-1].hours:
                points.append((samples, cost.then_s))
        for selector, (alone, ours) in raw_ratios(made(sizes[0], keep)[0]).items():
            text = f"raw {selector}: {ours:.2f} s, Prometheus alone {alone:.2f} s (at most {RAW_RATIO:g} x)"
            verdicts.append((ours <= RAW_RATIO * alone, text))
        verdicts.append(growth(points))
    for good, text in verdicts:
        print("PASS" if good else "FAIL", text)
    return 0 if all(good for good, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
