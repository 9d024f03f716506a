"""A thousand nodes on one machine: sharded fake targets with a real agent's payload, one real Prometheus.

Each node has its own loopback address, its own connection and its own name; one in a hundred is replaced by a new node
every ten seconds through the target file. Prints scrape success, CPU, memory, samples/s, bytes per sample in the
write-ahead log and in a compacted block (made with promtool from the same payload), the time to come back after
kill -9, and the table for other sizes, extrapolated in proportion.
Usage: .venv/bin/python bench/scale.py [--nodes 1000] [--seconds 180] [--interval 15]
With --shards N (0: as many as a job of that size has) real recorders share the nodes instead: see scale_shards.py.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import scale_shards
from fleet import Payload, address_of, name_of
from sizing import Measured, table
from tree_agent import TreeAgent, plant
from usage import cpu_seconds, memory_mb

from trackwalker.job.processes import free_port
from trackwalker.job.shards import shards
from trackwalker.observe.prometheus import ensure_prometheus, find_promtool
from trackwalker.observe.server import Server

SHARD = 500  # nodes of one fake-target process
REPLACE_EVERY_S = 10.0
BLOCK_STEPS = 480  # samples of a series in a block: two hours at 15 s
BLOCK_NODES = 2
LEAST_SUCCESS = 0.999
FILL_S = 300.0
ACCEPT = {"Accept": "application/openmetrics-text; version=1.0.0"}


def get(url: str, headers: dict[str, str] | None = None) -> str:
    """One answer."""
    request = urllib.request.Request(url, headers=headers or {})  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return str(answer.read().decode())


def capture(folder: Path) -> str:
    """What a real agent serves on a node with 8 GPUs and 8 adapters."""
    agent = TreeAgent(folder / "agent", plant(folder / "sys"))
    try:
        url = agent.url
        time.sleep(11)  # the slowest collector runs every ten seconds
        return get(url, ACCEPT)
    finally:
        agent.stop()


class Fleet:
    """The fake targets and the file that names them."""

    def __init__(self, folder: Path, nodes: int, spare: int, interval_s: float) -> None:
        self._port, self._file = free_port(), folder / "targets.json"
        self._nodes, self._next = list(range(nodes)), nodes
        self.replaced = 0
        script = Path(__file__).resolve().parent / "fleet.py"
        self.processes = []
        for first in range(0, nodes + spare, SHARD):
            count = min(SHARD, nodes + spare - first)
            argv = [sys.executable, str(script), str(folder / "payload.om"), str(first), str(count), str(self._port)]
            self.processes.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        for process in self.processes:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise SystemExit("the fake targets do not start (see above)")
        self._write()
        timeout = min(10.0, interval_s)
        self.config = folder / "prometheus.yml"
        self.config.write_text(
            f"global: {{scrape_interval: {interval_s:g}s, scrape_timeout: {timeout:g}s}}\n"
            "scrape_configs:\n  - job_name: node_hw\n    file_sd_configs:\n"
            f"      - {{files: [{json.dumps(str(self._file))}], refresh_interval: 1s}}\n"
        )

    def _write(self) -> None:
        groups = [
            {"targets": [f"{address_of(n)}:{self._port}"], "labels": {"instance": name_of(n)}} for n in self._nodes
        ]
        new = self._file.with_suffix(".tmp")
        new.write_text(json.dumps(groups))
        new.replace(self._file)

    def replace(self) -> None:
        """The oldest hundredth gives way to new nodes."""
        few = max(1, len(self._nodes) // 100)
        self._nodes = self._nodes[few:] + list(range(self._next, self._next + few))
        self._next += few
        self.replaced += few
        self._write()

    def stop(self) -> None:
        """End them."""
        for process in self.processes:
            process.kill()
            process.wait()


def own(server: Server, name: str) -> float:
    """A value of Prometheus about itself."""
    values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", get(f"{server.url}/metrics"), re.MULTILINE)
    return sum(map(float, values))


def query(server: Server, expression: str, at: float | None = None) -> float:
    """The value of an expression that gives one, as of a moment."""
    url = f"{server.url}/api/v1/query?query={quote(expression)}&time={at or time.time():.3f}"
    result = json.loads(get(url))["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def size(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def block_bytes(payload: Payload, promtool: Path, folder: Path, interval_s: float) -> float:
    """Bytes per sample of two nodes in a compacted block."""
    text, count = folder / "block.om", 0
    begin = (int(time.time()) // 7200 - 2) * 7200  # where Prometheus begins a block
    with text.open("w") as out:
        for step in range(BLOCK_STEPS):
            stamp = f" {begin + step * interval_s:.3f}\n"
            for node in range(BLOCK_NODES):
                lines = [x for x in payload.write(node, step * interval_s).splitlines() if not x.startswith("#")]
                count += len(lines)
                out.write(stamp.join([*lines, ""]))
        out.write("# EOF\n")
    blocks = folder / "blocks"
    command = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(text), str(blocks)]
    subprocess.run(command, check=True, capture_output=True)
    return size(blocks) / count


def fill(server: Server, series: int, interval_s: float) -> float:
    """Wait until every node has been seen, and one round more; how long the first took."""
    begin = time.monotonic()
    while own(server, "prometheus_tsdb_head_series") < series:
        if time.monotonic() - begin > FILL_S:
            raise SystemExit(f"after {FILL_S:.0f} s not every node has been scraped: too many nodes for this machine")
        time.sleep(1)
    took = time.monotonic() - begin
    time.sleep(interval_s + 1)
    return took


def observe(server: Server, fleet: Fleet, options: argparse.Namespace) -> dict[str, float]:
    """Scrape for a while with nodes coming and going."""
    begin, cpu, samples = time.monotonic(), cpu_seconds([server.process.pid]), own(server, _APPENDED)
    fakes = cpu_seconds([p.pid for p in fleet.processes])
    rss, next_replace = 0.0, begin + REPLACE_EVERY_S
    while time.monotonic() - begin < options.seconds:
        time.sleep(1)
        rss = max(rss, memory_mb(server.process.pid))
        if time.monotonic() >= next_replace:
            fleet.replace()
            next_replace += REPLACE_EVERY_S
    # The counts first: the queries below take their time on a busy machine, and cost CPU that is not ingestion.
    samples = own(server, _APPENDED) - samples
    cpu, fakes = cpu_seconds([server.process.pid]) - cpu, cpu_seconds([p.pid for p in fleet.processes]) - fakes
    took, end = time.monotonic() - begin, time.time()
    window, due = f"[{int(took)}s]", options.nodes * int(took) / options.interval
    return {
        "samples_s": samples / took,
        "cores": cpu / took,
        "fake_cores": fakes / took,
        "rss_mb": rss,
        # One expression: a late scrape is stored under the time it began, also between two queries.
        "success": query(server, f"sum(sum_over_time(up{window})) / sum(count_over_time(up{window}))", end),
        "complete": query(server, f"sum(count_over_time(up{window}))", end) / due,
        "slowest_s": query(server, f"max(max_over_time(scrape_duration_seconds{window}))", end),
        "median_s": query(server, "quantile(0.5, scrape_duration_seconds)", end),
        "head_series": own(server, "prometheus_tsdb_head_series"),
    }


_APPENDED = "prometheus_tsdb_head_samples_appended_total"


def run(folder: Path, options: argparse.Namespace) -> int:
    """All of it."""
    binary = ensure_prometheus(print)
    promtool = find_promtool(binary)
    if promtool is None:
        raise SystemExit("promtool is not beside Prometheus")
    text = capture(folder)
    (folder / "payload.om").write_text(text)
    payload = Payload(text)
    spare = (int(options.seconds / REPLACE_EVERY_S) + 2) * max(1, options.nodes // 100)
    fleet = Fleet(folder, options.nodes, spare, options.interval)
    data, log = folder / "data", folder / "prometheus.log"
    server = Server(binary, data, fleet.config, log)
    try:
        if not server.wait_ready(60):
            raise SystemExit(f"Prometheus does not start: {server.said()[-500:]}")
        filled_s = fill(server, options.nodes * payload.series, options.interval)
        seen = observe(server, fleet, options)
        total = own(server, _APPENDED)
        wal = size(data / "wal") / total
        server.process.kill()
        server.process.wait()
        fleet.stop()  # nothing to scrape: the time below is the replay's alone
        begin = time.monotonic()
        server = Server(binary, data, fleet.config, log)
        if not server.wait_ready(1200):
            raise SystemExit("Prometheus does not come back")
        replay_s = time.monotonic() - begin
        span = int(options.seconds) + 600
        kept = query(server, f"count(last_over_time(hw_agent_info[{span}s]))")
    finally:
        server.stop()
        fleet.stop()
    compact = block_bytes(payload, promtool, folder, options.interval)
    measured = Measured(
        options.nodes, options.interval, payload.series, seen["samples_s"], seen["cores"], seen["rss_mb"], wal, compact,
        total / replay_s,
    )  # fmt: skip
    good = seen["success"] >= LEAST_SUCCESS and seen["complete"] >= LEAST_SUCCESS
    rows = {
        "scrapes that succeeded": f"{100 * seen['success']:.3f} %  (of those due: {100 * seen['complete']:.2f} %)",
        "a scrape takes": f"{1000 * seen['median_s']:.0f} ms, the slowest {1000 * seen['slowest_s']:.0f} ms",
        "all nodes seen after": f"{filled_s:.0f} s",
        "nodes replaced": f"{fleet.replaced}, series in the head {seen['head_series']:,.0f}",
        "ingested": f"{seen['samples_s']:,.0f} samples/s",
        "Prometheus": f"{seen['cores']:.2f} cores, {seen['rss_mb']:,.0f} MB",
        "fake targets": f"{seen['fake_cores']:.2f} cores",
        "write-ahead log": f"{wal:.1f} bytes/sample",
        "compacted block": f"{compact:.2f} bytes/sample  ({BLOCK_NODES} nodes, {BLOCK_STEPS} samples a series)",
        "after kill -9": f"ready in {replay_s:.1f} s, {total:,.0f} samples replayed, {kept:.0f} nodes found",
    }
    what = f"{options.nodes} nodes x {payload.series} series every {options.interval:g} s"
    print(f"{what}, {options.seconds:g} s measured")
    for name, text in rows.items():
        print(f"{name:24} {text}")
    print(f"\n{table(measured, [(24, 1.0), (24, 15.0), (1000, 15.0), (10000, 15.0)])}")
    print(f"{'PASS' if good else 'FAIL'}  scrape success (at least {100 * LEAST_SUCCESS:.1f} %)")
    return 0 if good else 1


def main() -> int:
    """Parse, run, clean up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--interval", type=float, default=15.0, help="seconds between scrapes of a node")
    parser.add_argument("--shards", type=int, help="recorders that share the nodes; 0: as a job of that size has")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        if options.shards is not None:
            options.shards = options.shards or shards(options.nodes)
            ensure_prometheus(print)
            return scale_shards.run(Path(folder), options, capture(Path(folder)))
        return run(Path(folder), options)


if __name__ == "__main__":
    sys.exit(main())
