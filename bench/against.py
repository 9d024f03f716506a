"""Another tree against this one, turn by turn: the agent's CPU per scrape and the first paint of a job page.

Both see the same minutes of a machine that others use as well, so the ratio tells more than either figure.
Usage: .venv/bin/python bench/against.py TREE [--rounds 6] [--scrapes 15]   # TREE: a git worktree of an older revision
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from diagnose import Size, made
from web import CHROMIUM, opened, server

HERE = Path(__file__).resolve().parent.parent


def scrape(tree: Path, scrapes: int) -> tuple[float, float]:
    """What one scrape costs that tree's agent in milliseconds, and its number of series; in a process of that tree."""
    code = (
        "import json, sys, tempfile; from pathlib import Path; from exporter import measure_ours, plant\n"
        "with tempfile.TemporaryDirectory() as name:\n"
        "    cost = measure_ours(Path(name), plant(Path(name) / 'sys'), int(sys.argv[1]), 1.0)\n"
        "print(json.dumps({'cpu': cost.cpu_ms, 'series': cost.series}))"
    )
    path = os.pathsep.join((str(tree / "src"), str(tree / "bench")))
    done = subprocess.run(
        [sys.executable, "-c", code, str(scrapes)], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    cost = json.loads(done.stdout.splitlines()[-1])
    return float(cost["cpu"]), float(cost["series"])


def main() -> int:
    """Measure in turns and print both medians and the ratio of the pairs."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--scrapes", type=int, default=15)
    asked = parser.parse_args()
    trees = {"then": asked.tree.resolve(), "now": HERE}
    seen: dict[str, dict[str, list[float]]] = {"first paint, s": {}, "CPU per scrape, ms": {}, "series": {}}
    with tempfile.TemporaryDirectory(prefix="trackwalker-against-") as held, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        browser.new_page().goto("data:text/html,<p>warm")
        job, _ = made(Size(8, 1), Path(held))
        for turn in range(asked.rounds):
            order = list(trees.items())[:: 1 if turn % 2 else -1]
            for name, tree in order:
                state = str(Path(held) / f"state-{name}")
                with server(job.parent, PYTHONPATH=str(tree / "src"), XDG_STATE_HOME=state) as (_, link):
                    page, _, paint = opened(browser, link, job.name.partition("-")[0])
                    page.context.close()
                seen["first paint, s"].setdefault(name, []).append(paint)
                cost, series = scrape(tree, asked.scrapes)
                seen["CPU per scrape, ms"].setdefault(name, []).append(cost)
                seen["series"].setdefault(name, []).append(series)
        browser.close()
    for what, found in seen.items():
        then, now = found["then"], found["now"]
        pairs = [b / a for a, b in zip(then, now, strict=True)]
        print(
            f"{what}: then {statistics.median(then):.3g}, now {statistics.median(now):.3g} (medians of {len(then)}); "
            f"ratio of the pairs {statistics.median(pairs):.2f} ({min(pairs):.2f}..{max(pairs):.2f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
