"""What a scrape costs on a node with 8 GPUs and 8 adapters: our agent, Debian's node_exporter, a shell-plugin exporter.

One after the other on this machine, each is scraped as Prometheus does (keep-alive, gzip) at the recorder's interval.
CPU time is all that the process and what it started used in that time, background collection included, divided by the
scrapes; for our agent that is the whole agent with its collectors and the tending of a rank, without the rank itself.
node_exporter is Debian's package with its default collectors on the real /sys, unpacked and started by hand. The shell
exporter (bench/shell_exporter) reads the same tree as ours and collects at the same interval.
Targets: at most twice node_exporter's CPU, at most 40 MB resident, at least ten times less CPU than the shell exporter.
Usage: .venv/bin/python bench/exporter.py [--scrapes 60] [--interval 1]
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tree_agent import TreeAgent, plant
from usage import cpu_seconds, family, memory_mb

from trackwalker.job.processes import free_port
from trackwalker.observe.prometheus import tool_dir

PACKAGE = "prometheus-node-exporter"
ACCEPT = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"  # noqa: E501
WARM_UP = 5  # scrapes
MOST_CPU, MOST_MB, LEAST_GAIN = 2.0, 40.0, 10.0
SHELL_PERIOD_S = 12.0  # what the plugins of MaxText-Slurm take from one collection to the next


@dataclass(frozen=True)
class Cost:
    """What one exporter cost."""

    name: str
    cpu_ms: float  # per scrape
    rss_mb: float  # the most seen, all its processes together
    pss_mb: float
    series: int
    answer_ms: float  # median

    @property
    def per_thousand(self) -> float:
        """CPU milliseconds per 1,000 series."""
        return 1000 * self.cpu_ms / self.series


def measure(name: str, pid: int, url: str, scrapes: int, interval_s: float, without: list[int]) -> Cost:
    """Scrape on a fixed schedule and see what it takes."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc, timeout=30)
    body, took, rss, pss = b"", [], 0.0, 0.0
    begin, used = time.monotonic(), 0.0
    for number in range(WARM_UP + scrapes):
        if number == WARM_UP:
            begin, used = time.monotonic() - number * interval_s, cpu_seconds(family(pid, without))
        at = time.perf_counter()
        connection.request("GET", where.path, headers={"Accept": ACCEPT, "Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        body = answer.read()
        took.append(time.perf_counter() - at)
        if answer.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        members = family(pid, without)
        rss = max(rss, sum(map(memory_mb, members)))
        pss = max(pss, sum(memory_mb(p, "Pss") for p in members))
        time.sleep(max(0.0, begin + (number + 1) * interval_s - time.monotonic()))
    used = cpu_seconds(family(pid, without)) - used
    connection.close()
    lines = body.decode().splitlines()
    series = sum(bool(line) and not line.startswith("#") for line in lines)
    return Cost(name, 1000 * used / scrapes, rss, pss, series, 1000 * sorted(took[WARM_UP:])[scrapes // 2])


def wait_for(url: str) -> None:
    """Until it serves samples."""
    where = urlsplit(url)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(where.netloc, timeout=30)
        try:
            connection.request("GET", where.path)
            if connection.getresponse().read():
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise SystemExit(f"nothing is served at {url}")


def node_exporter() -> Path:
    """Debian's node_exporter: installed, or unpacked once into the tool folder without starting its service."""
    home = tool_dir() / "node-exporter"
    binary = home / "usr" / "bin" / PACKAGE
    if found := shutil.which(PACKAGE):
        return Path(found)
    if not binary.exists():
        home.mkdir(parents=True, exist_ok=True)
        command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", PACKAGE]
        subprocess.run(command, cwd=home, check=True, capture_output=True)
        package = next(home.glob(f"{PACKAGE}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), str(home)], check=True)
        package.unlink()
    return binary


def measure_ours(folder: Path, tree: Path, scrapes: int, interval_s: float) -> Cost:
    """The agent."""
    agent = TreeAgent(folder, tree)
    try:
        return measure("trackwalker agent", agent.process.pid, agent.url, scrapes, interval_s, agent.ranks)
    finally:
        agent.stop()


def measure_program(name: str, argv: list[str], port: int, tree: Path, scrapes: int, interval_s: float) -> Cost:
    """Any other exporter."""
    env = {**os.environ, "SYSFS": str(tree)}
    process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        wait_for(url)
        return measure(name, process.pid, url, scrapes, interval_s, [])
    finally:
        process.terminate()
        process.wait(30)


def verdicts(ours: Cost, other: Cost, shell: Cost) -> list[tuple[bool, str]]:
    """Each target and whether it is met."""
    ratio, gain = ours.cpu_ms / other.cpu_ms, shell.cpu_ms / ours.cpu_ms
    return [
        (ratio <= MOST_CPU, f"{ratio:.2f}x the CPU of node_exporter (at most {MOST_CPU:.0f}x)"),
        (ours.rss_mb <= MOST_MB, f"{ours.rss_mb:.1f} MB resident (at most {MOST_MB:.0f} MB)"),
        (gain >= LEAST_GAIN, f"{gain:.0f}x less CPU than the shell exporter (at least {LEAST_GAIN:.0f}x)"),
    ]


def main() -> int:
    """Measure the three and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scrapes", type=int, default=60)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds; the recorder's own is 1")
    options = parser.parse_args()
    binary = node_exporter()
    with tempfile.TemporaryDirectory(prefix="bench-exporter-") as name:
        tree = plant(Path(name) / "sys")
        ours = measure_ours(Path(name), tree, options.scrapes, options.interval)
        port = free_port()
        argv = [str(binary), f"--web.listen-address=127.0.0.1:{port}"]
        other = measure_program("node_exporter", argv, port, tree, options.scrapes, options.interval)
        port = free_port()
        script = Path(__file__).resolve().parent / "shell_exporter" / "exporter.py"
        argv = [sys.executable, "-I", "-S", str(script), str(port), str(options.interval)]
        shell = measure_program("shell plugins", argv, port, tree, options.scrapes, options.interval)
    print(f"{options.scrapes} scrapes each, one every {options.interval:g} s\n")
    print(f"{'exporter':18}{'CPU/scrape':>12}{'of a core':>11}{'RSS':>10}{'PSS':>10}{'series':>8}{'CPU/1k series':>15}")
    for cost in (ours, other, shell):
        share = cost.cpu_ms / 10 / options.interval
        print(
            f"{cost.name:18}{cost.cpu_ms:9.1f} ms{share:9.2f} %{cost.rss_mb:7.1f} MB{cost.pss_mb:7.1f} MB"
            f"{cost.series:8}{cost.per_thousand:12.1f} ms   (answers in {cost.answer_ms:.1f} ms)"
        )
    print(
        f"\nAt the {SHELL_PERIOD_S:.0f} s from one collection to the next that upstream's plugins have, the shell"
        f" exporter would use {shell.cpu_ms / 10 / SHELL_PERIOD_S:.1f} % of a core."
    )
    met = verdicts(ours, other, shell)
    for good, text in met:
        print(f"{'PASS' if good else 'FAIL'}  {text}")
    return 0 if all(good for good, _ in met) else 1


if __name__ == "__main__":
    sys.exit(main())
