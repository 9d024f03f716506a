"""The job page in a real browser over a cold server: first paint, verdict, heat map, CPU time and memory.

Then the list of 500 jobs, and twenty readers of such a workspace at once (`web_readers.py`).

python bench/web.py --keep /some/folder   # simulated jobs are made once and kept there
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import web_readers
from diagnose import Size, made, peak_mb
from usage import cpu_seconds, family, memory_mb

from trackwalker.observe.prometheus import find_prometheus
from trackwalker.telemetry.store import compile_ahead

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LONG_MS = 300_000
FIRST_PAINT_S = 0.6  # on two cores, whatever the size
HEAT_S, VERDICT_S = 3.0, 15.0
SIZES = (Size(24, 24), Size(1000, 2))
COMPILED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trackwalker" / "compiled"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


@dataclass(frozen=True)
class Seen:
    """What one visit took, in seconds from the click; CPU by process."""

    paint_s: float
    said_s: float  # until the first screen says something about the job
    verdict_s: float
    heat_s: float
    culprits: str
    own_cpu_s: float  # of the process that paints
    beside_cpu_s: float  # of those that it started: readers of long logs, Prometheus
    own_mb: float  # at most
    all_mb: float  # of all processes together, at most


@contextmanager
def server(workspace: Path, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`trackwalker serve` as a user starts it, and the link that it prints."""
    argv = [sys.executable, "-m", "trackwalker", "serve", "--workspace", str(workspace), "--port", "0"]
    with tempfile.TemporaryDirectory(prefix="trackwalker-bench-cache-") as cache:
        # Nothing that an earlier server had worked out. What setting up a machine gives is there: Prometheus, and the
        # machine code that is compiled once for each user, which says nothing of any job.
        environ = {
            **os.environ,
            "XDG_CACHE_HOME": cache,
            "TRACKWALKER_PROMETHEUS": str(find_prometheus() or ""),
            "NUMBA_CACHE_DIR": str(COMPILED),
            **env,
        }
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environ)
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield process, line.split()[0]
        finally:
            process.terminate()
            process.wait(60)


def opened(browser: Any, link: str, job: str) -> tuple[Any, float, float]:
    """The page of a job, when it was asked for and its first paint after that, by a visitor who had the link before."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    bare, _, token = link.partition("?token=")
    if token:  # the cookie that it gives, without a visit that warms the server's pages
        context.request.get(link, max_redirects=0)
    page = context.new_page()
    page.set_default_timeout(LONG_MS)
    began = time.perf_counter()
    page.goto(f"{bare.rstrip('/')}/job/{job}", wait_until="commit")
    while (paint := page.evaluate(PAINT)) is None:  # the content policy refuses the waiting of Playwright itself
        time.sleep(0.01)
    return page, began, paint / 1000


def visit(browser: Any, link: str, job: str, process: subprocess.Popen[str]) -> Seen:
    """Open the page once and look until everything on it is there."""
    page, began, paint_s = opened(browser, link, job)
    page.evaluate("document.getElementById('hosts').scrollIntoView()")
    times: dict[str, float] = {}
    done = {
        "said": "document.getElementById('job').dataset.first === 'there'",
        "heat": "document.getElementById('heat').dataset.drawn !== undefined",
        "verdict": "document.getElementById('job').dataset.complete === 'yes'",
    }
    deadline, looked, all_mb = began + LONG_MS / 1000, began, 0.0
    while len(times) < len(done):
        if time.perf_counter() > deadline:
            raise TimeoutError(f"only {', '.join(times) or 'nothing'} was drawn; {page.inner_text('#hosts')[:200]}")
        for name, test in done.items():
            if name not in times and page.evaluate(test):
                times[name] = time.perf_counter() - began
        if time.perf_counter() - looked > 0.5:
            looked = time.perf_counter()
            all_mb = max(all_mb, sum(memory_mb(pid, "Pss") for pid in family(process.pid)))
        time.sleep(0.02)
    culprits = ", ".join(page.locator("#verdict .culprits button").all_inner_texts())
    own_cpu_s = cpu_seconds([process.pid], ended=False)
    seen = Seen(
        paint_s=paint_s,
        said_s=times["said"],
        verdict_s=times["verdict"],
        heat_s=times["heat"],
        culprits=culprits,
        own_cpu_s=own_cpu_s,
        beside_cpu_s=cpu_seconds(family(process.pid)) - own_cpu_s,
        own_mb=peak_mb(process.pid),
        all_mb=all_mb,
    )
    page.context.close()
    return seen


def main() -> int:
    """Make, look, judge."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="keep the simulated jobs here, and use those that are here")
    parser.add_argument(
        "--nodes", type=int, choices=[size.nodes for size in SIZES], help="only the job of this many nodes"
    )
    args = parser.parse_args()
    verdicts = []
    os.environ["NUMBA_CACHE_DIR"] = str(COMPILED)
    compile_ahead()
    with tempfile.TemporaryDirectory(prefix="trackwalker-bench-") as temporary, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        warm = browser.new_page()  # the browser's own start is not the page's
        warm.goto("data:text/html,<link rel=icon href=data:,><canvas></canvas><script>1</script><p>warm")
        for size in SIZES:
            if args.nodes not in (None, size.nodes):
                continue
            job, samples = made(size, args.keep or Path(temporary))
            with server(job.parent) as (process, link):
                seen = visit(browser, link, job.name.partition("-")[0], process)
            print(
                f"{size.name:12} {samples / 1e6:7.1f} M samples: first paint {seen.paint_s:.2f} s, what the log says "
                f"{seen.said_s:.2f} s, heat map {seen.heat_s:.1f} s, verdict {seen.verdict_s:.1f} s ({seen.culprits}); "
                f"CPU {seen.own_cpu_s:.1f} s of the process that paints + {seen.beside_cpu_s:.1f} s beside it; "
                f"peak {seen.own_mb:.0f} MB, of all together {seen.all_mb:.0f} MB",
                flush=True,
            )
            for what, took, limit in (
                ("first paint", seen.paint_s, FIRST_PAINT_S),
                ("heat map", seen.heat_s, HEAT_S),
                ("verdict", seen.verdict_s, VERDICT_S),
            ):
                verdicts.append((took <= limit, f"{size.name}: {what} {took:.2f} s (at most {limit:g})"))
        browser.close()
    if args.nodes is None:  # behind the browser, whose driver has an event loop of its own in this thread
        with (
            tempfile.TemporaryDirectory(prefix="trackwalker-bench-") as temporary,
            server(web_readers.workspace(Path(temporary) / "outputs")) as (process, link),
        ):
            verdicts += web_readers.judge(link, process)
    for good, text in verdicts:
        print("PASS" if good else "FAIL", text)
    return 0 if all(good for good, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
