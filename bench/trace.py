"""Our reader against xprof's Parquet export of the same trace in the same run: python bench/trace.py [--mb 200]

Generates a trace of eight GPUs with one straggler. Then by turns ours reads it, divides the steps and names the
straggler, and xprof exports a copy of it to Parquet (which names nothing). Each runs in a process of its own: time is
that of the work without the imports, memory the peak of the whole process. xprof lives in `.xprof-venv`, made on the
first run (about a minute, 350 MB); Trackwalker never imports it. `--sizes` shows instead how ours grows from 100 MB
to 1 GB. Exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from trace_maker import Recipe, Timeline, sized, without_stragglers, write_one  # noqa: E402

XPROF = "xprof==2.24.1"
HOME = ROOT / ".xprof-venv"
STRAGGLER = 5
LEAST = 4.0  # times faster, and times less memory
SIZES = [100, 250, 500, 1000]
LINEAR = 1.35  # time per megabyte of the largest over that of the smallest
_USAGE = """
import json, resource, sys, time
from pathlib import Path
path = Path(sys.argv[1])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
"""
OURS = (
    _USAGE
    + """
from trackwalker.perf.gather import gather
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
    time_ratio = statistics.median(t["seconds"] / o["seconds"] for o, t in zip(ours, theirs, strict=True))
    memory_ratio = statistics.median(t["mb"] / o["mb"] for o, t in zip(ours, theirs, strict=True))
    found = right(ours[0], made)
    good = found and time_ratio >= LEAST and memory_ratio >= LEAST
    print(f"{path.stat().st_size / 1e6:.0f} MB, 8 GPUs, {made.recipe.steps} steps; straggler and buckets {found=}")
    for name, runs in (("ours", ours), ("xprof", theirs)):
        middle = {key: statistics.median(run[key] for run in runs) for key in ("seconds", "cpu", "mb")}
        print(f"  {name:6}{middle['seconds']:7.2f} s  (cpu {middle['cpu']:.2f} s)  {middle['mb']:7.0f} MB")
    print(f"  of ours, comparing the ranks: {statistics.median(o['central_s'] for o in ours):.2f} s")
    rows = " ".join(f"{t['seconds'] / o['seconds']:.1f}" for o, t in zip(ours, theirs, strict=True))
    print(
        f"  {time_ratio:.1f} times faster (rounds {rows}), {memory_ratio:.1f} times less memory (target {LEAST:.0f}), "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: {'PASS' if good else 'FAIL'}"
    )
    return good


def growth(folder: Path) -> bool:
    """How time and memory of ours grow with the file."""
    rates = []
    path = folder / "host0.xplane.pb"
    for megabytes in SIZES:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", action="store_true", help="how ours grows with the file, without xprof")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as folder:
        good = growth(Path(folder)) if options.sizes else against(Path(folder), options.mb, options.rounds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
