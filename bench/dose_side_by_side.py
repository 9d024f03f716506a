"""Doses on many cores: python bench/dose_side_by_side.py OUT.json [--part 1/2] [FAULT…]

Every run of `trackwalker lab dose` on two cores of its own, as many at a time as the machine has pairs. `--part 1/2`
takes every second one, for a machine that is lent for minutes. What has no time left is not begun (--minutes, 8).
`--keep FOLDER` keeps the recordings of what was not named, to be asked again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from trackwalker.lab.real.dose import FAULTS, DoseResults, DoseRun

_ONE_S = 110.0  # the longest that a run takes
_ONE = """
import sys
from pathlib import Path
from trackwalker.lab.real.dose import FAULTS, run_dose
print(run_dose(FAULTS[sys.argv[1]], float(sys.argv[2]), Path(sys.argv[3]), lambda text: None).model_dump_json())
"""


def main() -> None:
    """Make the runs and write what was said of them."""
    given = argparse.ArgumentParser()
    given.add_argument("out", type=Path)
    given.add_argument("faults", nargs="*", default=list(FAULTS))
    given.add_argument("--part", default="1/1")
    given.add_argument("--minutes", type=float, default=8.0)
    given.add_argument("--keep", type=Path)
    args = given.parse_args()
    until = time.monotonic() + 60.0 * args.minutes
    cores = sorted(os.sched_getaffinity(0))
    pairs: Queue[tuple[int, int]] = Queue()
    for pair in zip(cores[::2], cores[1::2], strict=False):
        pairs.put(pair)
    part, parts = map(int, args.part.split("/"))
    plan = [(f, s) for f in args.faults for s in FAULTS[f].strengths][part - 1 :: parts]
    results = DoseResults(command=" ".join(["python", "bench/dose_side_by_side.py", *sys.argv[1:]]), cpus=2)

    def one(wanted: tuple[str, float]) -> None:
        fault, strength = wanted
        pair = pairs.get()
        try:
            if time.monotonic() + _ONE_S > until:
                print(f"{fault} {strength:g}: no time left", flush=True)
                return
            with tempfile.TemporaryDirectory(prefix="dose-") as folder:
                words = ["taskset", "-c", ",".join(map(str, pair)), sys.executable, "-c", _ONE]
                done = subprocess.run(
                    [*words, fault, str(strength), folder], capture_output=True, text=True, timeout=240, check=False
                )
                line = next((x for x in reversed(done.stdout.splitlines()) if x.startswith("{")), "")
                if not line:
                    print(f"{fault} {strength:g}: failed: {done.stderr.strip()[-300:]}", flush=True)
                    return
                run = DoseRun.model_validate_json(line)
                results.runs.append(run)
                args.out.write_text(results.model_dump_json(indent=1) + "\n")
                lost = "?" if run.lost is None else f"{100 * run.lost:.0f} %"
                print(f"{fault} {strength:g}: {lost} lost, {run.grade}, {run.roots}", flush=True)
                if args.keep and run.grade != "named":
                    without = shutil.ignore_patterns("checkpoints")  # of 150 MB they are 149
                    shutil.copytree(folder, args.keep / f"{fault}-{strength:g}", symlinks=True, ignore=without)
        finally:
            pairs.put(pair)

    with ThreadPoolExecutor(pairs.qsize()) as pool:
        list(pool.map(one, plan))
    results.runs.sort(key=lambda r: (list(FAULTS).index(r.fault), r.strength))
    args.out.write_text(results.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
