"""Our reader against xprof's Parquet export of the same trace in the same run: python bench/trace.py [--mb 200]

Generates a trace of eight GPUs with one straggler. Then by turns ours reads it, divides the steps and names the
straggler, and xprof exports a copy of it to Parquet (which names nothing). Each runs in a process of its own: time is
that of the work without the imports, memory the peak of the whole process. xprof lives in `.xprof-venv`, made on the
first run (about a minute, 350 MB); Trackwalker never imports it.

`--sizes` shows instead how ours grows from 100 MB to 1 GB (`--largest` for another end). `--central N` shows what is
left to do in one place for N ranks of 1 GB each: their tables, as long as those of such files, on clocks that differ,
are pickled, read again and compared. Exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import numpy as np  # noqa: E402
from trace_maker import Recipe, Timeline, sized, without_stragglers, write_one  # noqa: E402

from trackwalker.perf.formats.model import PS_PER_NS, Step  # noqa: E402
from trackwalker.perf.ranks.calls import last_steps  # noqa: E402
from trackwalker.perf.ranks.gather import (  # noqa: E402
    MOST_CALLS,
    RankTable,
    reduce_file,
)

XPROF = "xprof==2.24.1"
HOME = ROOT / ".xprof-venv"
STRAGGLER = 5
LEAST = 4.0  # times faster, and times less memory
SIZES = [100, 200, 400, 700, 1000]
CENTRAL_S = 10.0  # central work for 64 ranks
KERNELS = 60  # before each collective, in a file of the central work: a large model's
LATER_NS = 1_500_000  # each rank's file begins that much later than the one before
LINEAR = 1.35  # time per megabyte of the largest over that of the smallest
_USAGE = """
import json, resource, sys, time
from pathlib import Path
path = Path(sys.argv[1])
def peak():
    # Not getrusage: its peak begins with that of the process that started this one.
    rows = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(rows["VmHWM"].split()[0]) / 1024
def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
"""
OURS = (
    _USAGE
    + """
from trackwalker.perf.ranks.gather import gather
from trackwalker.perf.ranks import compare
began, used = time.perf_counter(), cpu()
tables, _ = gather([path])
middle = time.perf_counter()
across = compare(tables)
print(json.dumps({
    "seconds": time.perf_counter() - began, "central_s": time.perf_counter() - middle, "cpu": cpu() - used,
    "mb": peak(), "straggler": [s.rank for s in across.stragglers],
    "share": across.stragglers[0].share if across.stragglers else 0.0,
    "buckets": [vars(sum(t.buckets[1:], t.buckets[0])) for t in tables],
}))
"""
)
THEIRS = (
    _USAGE
    + """
import os
from xprof.convert.events_db.python import pywrap_events_db_c_api as events_db
events_db._get_lib()  # loading the library is not part of the work
out = path.with_suffix(".parquet")
began, used = time.perf_counter(), cpu()
events_db.xspace_to_parquet(input_path=str(path), output_path=str(out))
print(json.dumps({"seconds": time.perf_counter() - began, "cpu": cpu() - used, "mb": peak(),
                  "bytes": os.path.getsize(out)}))
"""
)

CENTRAL = (
    _USAGE
    + """
import pickle
from trackwalker.perf.ranks.gather import _unite_groups
from trackwalker.perf.ranks import compare
began, used = time.perf_counter(), cpu()
tables = [pickle.loads(file.read_bytes()) for file in sorted(path.glob("*.pickle"))]
_unite_groups(tables)
read = time.perf_counter()
across = compare(tables)
print(json.dumps({
    "seconds": time.perf_counter() - began, "read_s": read - began, "cpu": cpu() - used, "mb": peak(),
    "straggler": [s.rank for s in across.stragglers], "executions": int(across.start.shape[1]),
    "share": across.stragglers[0].share if across.stragglers else 0.0,
    "residual_us": across.alignment.residual_ps / 1e6, "gaps": [g.why for g in across.gaps],
}))
"""
)


def xprof_python() -> Path:
    """The interpreter that has xprof, installed on the first use."""
    python = HOME / "bin" / "python"
    ready = HOME / f".{XPROF}"
    if not ready.exists():
        print(f"installing {XPROF} into {HOME.name} ...", flush=True)
        venv.create(HOME, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", XPROF], check=True)
        ready.touch()
    return python


def measured(python: str, script: str, path: Path) -> dict[str, Any]:
    """One run in a process of its own; what it prints last is its answer."""
    words = [python, "-c", script, str(path)]
    run = subprocess.run(words, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"the run failed:\n{run.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer


def right(answer: dict[str, Any], made: Timeline) -> bool:
    """Whether ours found what was put in: the straggler, its cost, and every picosecond of every rank."""
    cost = 1 - without_stragglers(made.recipe).span / made.span
    exact = all(
        all(found[key] == made.truth(rank)[key] for key in ("compute", "exposed_comm", "overlapped_comm", "idle"))
        for rank, found in enumerate(answer["buckets"])
    )
    return exact and answer["straggler"] == [STRAGGLER] and abs(answer["share"] - cost) < 0.01


def against(folder: Path, megabytes: float, rounds: int) -> bool:
    """Ours and theirs by turns; whether both targets are met."""
    python = xprof_python()
    path = folder / "host0.xplane.pb"
    made = write_one(sized(Recipe(layers=64, slow={STRAGGLER: 1.3}), megabytes), path)
    ours, theirs = [], []
    for i in range(rounds):
        ours.append(measured(sys.executable, OURS, path))
        copy = folder / f"copy{i}"  # xprof writes beside what it reads
        copy.mkdir()
        shutil.copy(path, copy / path.name)
        theirs.append(measured(str(python), THEIRS, copy / path.name))
        shutil.rmtree(copy)
    # The quickest round of each: what else the machine does can only add to a time.
    time_ratio = min(t["seconds"] for t in theirs) / min(o["seconds"] for o in ours)
    cpu_ratio = min(t["cpu"] for t in theirs) / min(o["cpu"] for o in ours)
    memory_ratio = statistics.median(t["mb"] / o["mb"] for o, t in zip(ours, theirs, strict=True))
    found = right(ours[0], made)
    good = found and time_ratio >= LEAST and memory_ratio >= LEAST
    print(f"{path.stat().st_size / 1e6:.0f} MB, 8 GPUs, {made.recipe.steps} steps; straggler and buckets {found=}")
    for name, runs in (("ours", ours), ("xprof", theirs)):
        best = {key: min(run[key] for run in runs) for key in ("seconds", "cpu", "mb")}
        print(f"  {name:6}{best['seconds']:7.2f} s  (cpu {best['cpu']:.2f} s)  {best['mb']:7.0f} MB")
    print(f"  of ours, comparing the ranks: {statistics.median(o['central_s'] for o in ours):.2f} s")
    rows = " ".join(f"{t['seconds'] / o['seconds']:.1f}" for o, t in zip(ours, theirs, strict=True))
    print(
        f"  {time_ratio:.1f} times faster (rounds {rows}; {cpu_ratio:.1f} times less CPU time), "
        f"{memory_ratio:.1f} times less memory (target {LEAST:.0f}), "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: {'PASS' if good else 'FAIL'}"
    )
    return good


def growth(folder: Path, largest: float) -> bool:
    """How time and memory of ours grow with the file."""
    rates = []
    path = folder / "host0.xplane.pb"
    for megabytes in [size for size in SIZES if size <= largest]:
        made = write_one(sized(Recipe(layers=64, slow={STRAGGLER: 1.3}), megabytes), path)
        size = path.stat().st_size / 1e6
        answer = measured(sys.executable, OURS, path)
        rates.append(answer["cpu"] / size)
        print(
            f"{size:6.0f} MB  {answer['seconds']:6.2f} s (cpu {answer['cpu']:.2f} s, {rates[-1] * 1000:.1f} ms/MB)  "
            f"{answer['mb']:6.0f} MB  right: {right(answer, made)}",
            flush=True,
        )
    good = rates[-1] <= LINEAR * rates[0]
    print(f"per megabyte {rates[-1] / rates[0]:.2f} times the smallest (target {LINEAR}): {'PASS' if good else 'FAIL'}")
    return good


def stretched(table: RankTable, rank: int, steps: int) -> RankTable:
    """A rank's table as a file of that many steps gives it: the same steps again and again, on a clock of its own."""
    period = table.steps[-1].end - table.steps[0].start + 50_000_000
    later = rank * LATER_NS * PS_PER_NS
    often = -(-steps // len(table.steps))
    calls = type(table.calls).concat([table.calls] * often)
    times = np.repeat(np.arange(often), len(table.calls))
    calls.start, calls.end = calls.start + times * period - later, calls.end + times * period - later
    calls.step = (calls.step + times * len(table.steps)).astype(np.int32)
    moved = [
        Step(i * len(table.steps) + n, s.start + i * period - later, s.end + i * period - later)
        for i in range(often)
        for n, s in enumerate(table.steps)
    ]
    clock = (table.origin_ns or 0) + rank * LATER_NS + rank % 7 * 200_000  # and its clock is wrong
    return replace(
        table, path=f"host{rank // 8}.proc{rank % 8}.xplane.pb", device=0, origin_ns=clock, steps=moved,
        buckets=[replace(b) for b in table.buckets * often], calls=last_steps(calls, MOST_CALLS),
    )  # fmt: skip


def central(folder: Path, ranks: int) -> bool:
    """What is left to do in one place when every rank's file was reduced where it lies."""
    recipe = Recipe(gpus=ranks, steps=4, layers=64, slow={STRAGGLER: 1.3})
    path = folder / "few-steps.xplane.pb"
    made = write_one(recipe, path)
    # Of a file of 1 GB that holds one rank. The kernels do not travel, so only their number matters here.
    steps = sized(replace(recipe, gpus=1, kernels=KERNELS), 1000).steps
    sizes = []
    for rank, table in enumerate(reduce_file(path)):
        raw = pickle.dumps(stretched(table, rank, steps))
        sizes.append(len(raw) / 1e6)
        (folder / f"{rank:05d}.pickle").write_bytes(raw)
    found = measured(sys.executable, CENTRAL, folder)
    cost = 1 - without_stragglers(recipe).span / made.span
    right = found["straggler"] == [STRAGGLER] and abs(found["share"] - cost) < 0.01
    good = right and found["seconds"] <= CENTRAL_S * max(ranks / 64, 1)
    print(
        f"{ranks} ranks of 1 GB ({steps} steps each): {sum(sizes):.0f} MB travel ({max(sizes):.1f} MB of each); "
        f"{found['executions']} collectives compared, clocks agree to {found['residual_us']:.1f} us, straggler {right=}"
    )
    print(
        f"  central work {found['seconds']:.1f} s (of it reading {found['read_s']:.1f} s; cpu {found['cpu']:.1f} s), "
        f"{found['mb']:.0f} MB (target {CENTRAL_S:.0f} s for 64), load {os.getloadavg()[0]:.1f} on {os.cpu_count()} "
        f"cores: {'PASS' if good else 'FAIL'}"
    )
    print("".join(f"  gap: {why}\n" for why in found["gaps"]), end="")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", action="store_true", help="how ours grows with the file, without xprof")
    parser.add_argument("--largest", type=float, default=1000.0, help="with --sizes: megabytes at which to stop")
    parser.add_argument("--central", type=int, metavar="N", help="the central work for N ranks of 1 GB each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as folder:
        if options.central:
            good = central(Path(folder), options.central)
        elif options.sizes:
            good = growth(Path(folder), options.largest)
        else:
            good = against(Path(folder), options.mb, options.rounds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
