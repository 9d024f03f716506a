"""Ten thousand GPUs: a database of 1,250 hosts x 8 GPUs x 6 h with a planted incident, diagnosed on two cores.

Usage: taskset -c 0,1 python bench/scale10k.py [--hosts 1250] [--hours 6] [--keep FOLDER]
       python bench/scale10k.py --victoria [--hosts 64] [--hours 1]
       taskset -c 0,1 python bench/scale10k.py --curves FILE.json [--svg FILE.svg] [--keep FOLDER]

The incident has three parts one after the other: a host whose CPUs somebody else takes, a rack whose NICs lose packets,
a GPU held at a low clock and power. The database is written directly, by a recorder for each 250 hosts. The diagnosis
runs in a process of its own; the time is split by what the CPU worked on, in all threads, and the memory is the peak of
that process and of Prometheus where one was started. Exits 1 when the verdict is wrong or a limit is missed.
`--victoria` has the same incident read from a real VictoriaMetrics instead; the store's own memory is told, not judged.
`--curves` measures smaller jobs of growing hosts, hours and GPUs, and fits how time and memory grow.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scale_plot import Curve, fitted, plot
from usage import cpu_seconds, family

from trackwalker.diagnose import case
from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import Scenario
from trackwalker.lab.simulate import simulate
from trackwalker.telemetry.client import Telemetry
from trackwalker.telemetry.direct import decoding, index, samples

HOSTS_A_RECORDER = 250
STEP_S = 32.0
MOST_S, MOST_MB = 30.0, 4000.0
INCIDENT: dict[str, Any] = {
    "family": "scale10k",
    "split": "test",
    "about": "A host whose CPUs are taken, then a rack that loses packets, then a GPU held back.",
    "draw": {"slow": {"hosts": 1, "not_head": True}, "rack": {"hosts": 16}, "capped": {"hosts": 1, "not_head": True}},
    "world": {"ending": "cancelled", "checkpoint_period": 150, "save_s": 60.0},
    "faults": [
        {"kind": "cpu-hog", "hosts": "$slow", "factor": 1.25, "begin": 0.2, "end": 0.35},
        {"kind": "nic", "hosts": "$rack", "factor": 1.3, "begin": 0.45, "end": 0.65},
        {"kind": "pinned-clock", "host": "$capped", "gpus": [3], "factor": 1.35, "begin": 0.8},
    ],
    "truth": {
        "status": ["cancelled"],
        "outcome": "incident",
        "roots": [
            {"cause": "cpu-contention", "hosts": ["$slow"]},
            {"cause": "rdma-degradation", "hosts": ["$rack"]},
            {"cause": "gpu-clock-degraded", "hosts": ["$capped"]},
        ],
    },
}
ALSO_RIGHT = {"gpu-power-cap": "gpu-clock-degraded"}  # a card at low clock and low power is both
CURVES: dict[str, list[tuple[int, float, int]]] = {  # hosts, hours, GPUs
    "hosts": [(64, 1, 8), (128, 1, 8), (256, 1, 8), (512, 1, 8)],
    "hours": [(64, 1, 8), (64, 2, 8), (64, 4, 8)],
    "GPUs a host": [(64, 2, 2), (64, 2, 4), (64, 2, 8), (64, 2, 16)],
}


@dataclass(frozen=True)
class Cost:
    """What one diagnosis took."""

    seconds: float
    cpu_s: float
    split: dict[str, float]  # seconds of CPU, all threads together
    questions: int
    megabytes: float
    prometheus_s: float
    roots: dict[str, list[str]]


class Split:
    """CPU time by what it was spent on; what one part calls of another is the other's."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = threading.local()

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Count a function's time as a part's."""
        real: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            outer = getattr(self._inside, "children", 0.0)
            self._inside.children = 0.0
            began = time.thread_time()
            try:
                return real(*args, **kwargs)
            finally:
                whole = time.thread_time() - began
                self.seconds[part] += whole - self._inside.children
                self._inside.children = outer + whole

        setattr(owner, name, timed)


def measure(job: Path, by_numpy: bool) -> Cost:
    """Diagnose once in this process."""
    split = Split()
    began, cpu = time.perf_counter(), time.process_time()
    split.watch(case, "triage", "log")
    split.watch(index.BlockIndex, "entries", "index")
    split.watch(samples.Blocks, "__init__", "index")
    split.watch(index.MappedFile, "check", "checksums")
    split.watch(decoding, "decode", "decoding")
    if not by_numpy and find_spec("numba"):
        from trackwalker.telemetry.direct import kernel

        split.watch(kernel, "look", "decoding")
        split.watch(kernel, "decode", "decoding")
    for question in ("_instant", "matrix", "raw", "range"):
        split.watch(Telemetry, question, "questions")
    case.open_database = partial(case.open_database, direct_from=0)  # small ones as large ones
    decoding.WORTH_COMPILING = 1 << 60 if by_numpy else 0
    found = resolve(str(job), job.parent)
    verdict = diagnose(found).verdict
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Cost(
        seconds=seconds,
        cpu_s=cpu,
        split={**split.seconds, "statistics and the rest": cpu - sum(split.seconds.values())},
        questions=verdict.cost.queries,
        megabytes=(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        )
        / 1024,
        prometheus_s=cpu_seconds(family(os.getpid())[1:]) + sum(os.times()[2:4]),
        roots={c.cause: list(c.hosts) for c in verdict.roots},
    )


def made(hosts: int, hours: float, gpus: int, keep: Path) -> tuple[Path, int]:
    """The job's directory and how many samples it holds; simulated unless it is there already."""
    out = keep / f"scale-{hosts}x{gpus}x{hours:g}h"
    note = out / "samples.json"
    if not note.exists():
        scenario = Scenario(**INCIDENT)
        scenario.world = {**scenario.world, "steps": round(hours * 3600 / STEP_S)}
        recorders = -(-hosts // HOSTS_A_RECORDER)
        done = simulate(scenario, out, seed=1, nodes=hosts, gpus=gpus, recorders=recorders)
        note.write_text(json.dumps({"job": done.job.name, "samples": done.samples}))
    known = json.loads(note.read_text())
    return out / "outputs" / known["job"], int(known["samples"])


def measured(
    hosts: int, hours: float, gpus: int, keep: Path, by_numpy: bool = False
) -> tuple[Cost, int, dict[str, list[str]]]:
    """One job in a process of its own: cost, samples, and what is true about it."""
    job, count = made(hosts, hours, gpus, keep)
    argv = [sys.executable, __file__, "--measure", str(job), *(["--numpy"] if by_numpy else [])]
    cost = Cost(**json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout))
    truth = json.loads((job.parent.parent / "truth.json").read_text())
    told = ", ".join(f"{part} {s:.1f}" for part, s in sorted(cost.split.items(), key=lambda kv: -kv[1]))
    print(
        f"{hosts} hosts x {gpus} GPUs x {hours:g} h, {count / 1e6:.0f} M samples: {cost.seconds:.1f} s, "
        f"{cost.megabytes:.0f} MB; CPU {cost.cpu_s:.1f} s ({told}), Prometheus {cost.prometheus_s:.1f} s; "
        f"{cost.questions} questions; {sum(map(len, cost.roots.values()))} hosts in {', '.join(cost.roots)}",
        flush=True,
    )
    return cost, count, {root["cause"]: root["hosts"] for root in truth["roots"]}


def right(found: dict[str, list[str]], true: dict[str, list[str]]) -> bool:
    """Whether exactly the planted causes were found, on exactly their hosts."""
    named: dict[str, set[str]] = defaultdict(set)
    for cause, hosts in found.items():
        named[ALSO_RIGHT.get(cause, cause)] |= set(hosts)
    return named == {cause: set(hosts) for cause, hosts in true.items()}


def curves(out: Path, svg: Path | None, keep: Path) -> int:
    """Time and memory against hosts, hours and GPUs, with how they grow."""
    known: dict[tuple[int, float, int], Cost] = {}
    drawn = []
    for name, sizes in CURVES.items():
        for size in sizes:
            if size not in known:
                known[size] = measured(*size, keep)[0]
        along = [float(size[list(CURVES).index(name)]) for size in sizes]
        for what, values in (
            ("seconds of CPU", [known[s].cpu_s + known[s].prometheus_s for s in sizes]),
            ("peak MB", [known[s].megabytes for s in sizes]),
        ):
            curve = Curve(name, what, along, values)
            drawn.append(curve)
            print(f"{what} against {name}: {', '.join(f'{v:.1f}' for v in values)}; exponent {fitted(curve):.2f}")
    rows = [{"hosts": h, "hours": t, "gpus": g, **_short(cost)} for (h, t, g), cost in known.items()]
    out.write_text(json.dumps(rows, indent=1) + "\n")
    if svg is not None:
        svg.write_text(plot(drawn))
    return 0


def _short(cost: Cost) -> dict[str, Any]:
    """A cost to be kept: rounded, causes with the number of their hosts."""
    told = {k: round(v, 2) if isinstance(v, float) else v for k, v in asdict(cost).items()}
    split = {part: round(seconds, 3) for part, seconds in cost.split.items()}
    return told | {"split": split, "roots": {cause: len(hosts) for cause, hosts in cost.roots.items()}}


def main() -> int:
    """Make, measure, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1250)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="keep the simulated jobs here, and use those that are here")
    parser.add_argument("--curves", type=Path, help="measure how the cost grows, and write the figures here")
    parser.add_argument("--svg", type=Path, help="with --curves: the plots")
    parser.add_argument("--numpy", action="store_true", help="decode as where numba is not installed")
    parser.add_argument("--victoria", action="store_true", help="read it from a real VictoriaMetrics")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(asdict(measure(args.measure, args.numpy))))
        return 0
    with tempfile.TemporaryDirectory(prefix="trackwalker-bench-") as temporary:
        keep = args.keep or Path(temporary)
        if args.curves:
            return curves(args.curves, args.svg, keep)
        if args.victoria:
            import scale_victoria  # the store is a test's: pytest is needed

            job, samples = made(args.hosts, args.hours, args.gpus, keep)
            return 0 if scale_victoria.measure(job, samples, right, MOST_S, MOST_MB) else 1
        cost, _, true = measured(args.hosts, args.hours, args.gpus, keep, args.numpy)
    checks = [
        (right(cost.roots, true), f"the planted causes on their {sum(map(len, true.values()))} hosts, no other"),
        (cost.seconds <= MOST_S, f"{cost.seconds:.1f} s (at most {MOST_S:g})"),
        (cost.megabytes <= MOST_MB, f"{cost.megabytes:.0f} MB (at most {MOST_MB:g})"),
    ]
    for good, text in checks:
        print("PASS" if good else "FAIL", text)
    return 0 if all(good for good, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
