"""Which collectors a node gets, and how often each runs: what it does not have costs nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from trackwalker.job.processes import read_bytes
from trackwalker.node.collectors.filesystem import FilesystemCollector, NfsCollector
from trackwalker.node.collectors.gpu_amd import AmdGpuCollector, AmdRasCollector
from trackwalker.node.collectors.gpu_nvidia import NvidiaCollector
from trackwalker.node.collectors.kernel_log import KernelLogCollector
from trackwalker.node.collectors.netdev import NetdevCollector
from trackwalker.node.collectors.rdma import RdmaCollector
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.exporter.schedule import Collector
from trackwalker.node.sensors.sysfs import DECLARED, declared, families

# The machine as a whole: processes, context switches, memory, pressure, TCP (label host = the node).
METRICS = declared("host")
_TICK = os.sysconf("SC_CLK_TCK")
_LINES = {  # of the files that are numbers behind words: how the lines of those that are wanted begin
    "stat": ("procs_", "ctxt "),
    "meminfo": ("Mem", "Dirty", "Writeback"),
    "net/snmp": ("Tcp:",),
    "net/netstat": ("TcpExt:",),
    "vmstat": ("oom_kill ",),
}


class HostCollector:
    """Reads /proc; a file this kernel does not have leaves its metrics out."""

    name = "host"

    def __init__(self, node: str, root: str = "/proc") -> None:
        self._node = node
        self._root = root

    def collect(self) -> list[Family]:
        """All host families."""
        out = families(METRICS)
        for file in _LINES:
            self._words(out, file)
        for part in (self._cpu, self._pressure):
            with contextlib.suppress(ValueError, KeyError, StopIteration):
                part(out)
        return list(out.values())

    def _read(self, path: str, *beginnings: str) -> list[list[str]]:
        """The words of the lines that begin so (the others can be many: a line for every core and interrupt)."""
        raw = read_bytes(f"{self._root}/{path}") or b""
        lines = raw.decode("ascii", "replace").splitlines()
        return [line.split() for line in lines if line.startswith(beginnings) and line.strip()]

    def _words(self, out: dict[str, Family], file: str) -> None:
        """Numbers behind words; a file that this kernel writes in another way costs its own metrics only."""
        rows = self._read(file, *_LINES[file])
        if file.startswith("net/"):  # a line of names, then a line of values
            rows = [list(pair) for pair in zip(*rows)][1:] if len(rows) == 2 else []  # noqa: B905 - Python 3.9
        try:
            found = {row[0].rstrip(":"): float(row[1]) for row in rows if len(row) > 1}
        except ValueError:
            return
        for name, row in DECLARED["host"].items():
            if row.get("proc") == file and row["word"] in found:
                out[name].add(found[row["word"]] * row.get("times", 1), host=self._node)

    def _cpu(self, out: dict[str, Family]) -> None:
        rows = self._read("stat", "cpu")
        whole = next(f for f in rows if f[0] == "cpu")
        user, nice, system, _, _, irq, soft, steal = (float(v) / _TICK for v in whole[1:9])
        out["hw_node_cpu_seconds_total"].add(user + nice + system + irq + soft, host=self._node, mode="busy")
        out["hw_node_cpu_seconds_total"].add(steal, host=self._node, mode="steal")
        out["hw_node_cpus"].add(len(rows) - 1, host=self._node)

    def _pressure(self, out: dict[str, Family]) -> None:
        for resource in ("cpu", "memory", "io"):
            for fields in self._read(f"pressure/{resource}", "some", "full"):
                values = dict(part.split("=", 1) for part in fields[1:])
                for ending, word in (("pct", "avg10"), ("avg300_pct", "avg300"), ("total_us", "total")):
                    out[f"hw_{resource}_pressure_{fields[0]}_{ending}"].add(float(values[word]), host=self._node)


def machine_collectors(
    node: str, directories: list[str], sysfs: str = "/sys", members: Callable[[], set[int]] = set
) -> list[tuple[Collector, float]]:
    """The collectors of the machine itself with their intervals in seconds.

    File latency is probed in `directories`; `members` are the job's processes, all others on its GPUs are strangers.
    """
    found: list[tuple[Collector, float]] = [
        (HostCollector(node), 1.0),
        (NetdevCollector(node, sysfs=sysfs), 1.0),
        (RdmaCollector(node, sysfs), 2.0),
        (KernelLogCollector(node), 1.0),
        (AmdGpuCollector(node, sysfs), 1.0),
        (AmdRasCollector(node, sysfs), 10.0),  # these reads can wedge in the driver: rarely, and apart from power
        (FilesystemCollector(node, directories), 5.0),
        (NfsCollector(node), 10.0),
    ]
    nvidia = NvidiaCollector(node, members=members)
    if nvidia.available():
        found.append((nvidia, 1.0))
    return found
