"""Which collectors a node gets, and how often each runs: what it does not have costs nothing."""

from __future__ import annotations

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

# The machine as a whole: processes, context switches, memory, pressure, TCP (label host = the node).
_TICK = os.sysconf("SC_CLK_TCK")


class HostCollector:
    """Reads /proc; a file this kernel does not have leaves its metrics out."""

    name = "host"

    def __init__(self, node: str, root: str = "/proc") -> None:
        self._node = node
        self._root = root

    def collect(self) -> list[Family]:
        """All host families."""
        out: list[Family] = []
        for part in (self._stat, self._cpu, self._memory, self._pressure, self._tcp, self._oom):
            try:
                out += part()
            except (
                ValueError,
                KeyError,
                StopIteration,
            ):  # a file this kernel writes in another way costs its own metrics only
                continue
        return out

    def _read(self, path: str, *beginnings: str) -> list[list[str]]:
        """The words of the lines that begin so (the others can be many: a line for every core and interrupt)."""
        raw = read_bytes(f"{self._root}/{path}") or b""
        lines = raw.decode("ascii", "replace").splitlines()
        return [line.split() for line in lines if line.startswith(beginnings) and line.strip()]

    def _one(self, name: str, kind: str, help: str, value: float | None) -> Family:
        family = Family(name, kind, help)
        family.add(value, host=self._node)
        return family

    def _stat(self) -> list[Family]:
        values = {f[0]: float(f[1]) for f in self._read("stat", "procs_", "ctxt ") if len(f) == 2}
        return [
            self._one("hw_procs_running", "gauge", "Runnable tasks.", values.get("procs_running")),
            self._one("hw_procs_blocked", "gauge", "Tasks blocked on I/O.", values.get("procs_blocked")),
            self._one("hw_context_switches_total", "counter", "Context switches.", values.get("ctxt")),
        ]

    def _cpu(self) -> list[Family]:
        rows = self._read("stat", "cpu")
        whole = next(f for f in rows if f[0] == "cpu")
        user, nice, system, _, _, irq, soft, steal = (float(v) / _TICK for v in whole[1:9])
        time = Family("hw_node_cpu_seconds_total", "counter", "CPU time of everything on the machine, by mode.")
        time.add(user + nice + system + irq + soft, host=self._node, mode="busy")
        time.add(steal, host=self._node, mode="steal")
        return [time, self._one("hw_node_cpus", "gauge", "CPUs of the machine.", float(len(rows) - 1))]

    def _memory(self) -> list[Family]:
        rows = self._read("meminfo", "Mem", "Dirty", "Writeback")
        kib = {f[0].rstrip(":"): float(f[1]) * 1024 for f in rows if len(f) >= 2}
        names = {
            "hw_mem_total_bytes": ("MemTotal", "Installed memory."),
            "hw_mem_available_bytes": ("MemAvailable", "Memory available without swapping."),
            "hw_mem_dirty_bytes": ("Dirty", "Memory waiting to be written to disk."),
            "hw_mem_writeback_bytes": ("Writeback", "Memory being written to disk."),
        }
        return [self._one(n, "gauge", h, kib.get(key)) for n, (key, h) in names.items()]

    def _pressure(self) -> list[Family]:
        out = []
        for resource in ("cpu", "memory", "io"):
            for fields in self._read(f"pressure/{resource}", "some", "full"):
                values = dict(part.split("=", 1) for part in fields[1:])
                stem = f"hw_{resource}_pressure_{fields[0]}"
                text = f"{resource} pressure ({fields[0]})"
                out.append(self._one(f"{stem}_pct", "gauge", f"{text}, last 10 s.", float(values["avg10"])))
                out.append(self._one(f"{stem}_avg300_pct", "gauge", f"{text}, last 300 s.", float(values["avg300"])))
                out.append(self._one(f"{stem}_total_us", "counter", f"{text}, stalled time.", float(values["total"])))
        return out

    def _tcp(self) -> list[Family]:
        snmp, ext = self._paired("net/snmp", "Tcp:"), self._paired("net/netstat", "TcpExt:")
        rows = {
            "hw_tcp_retransmits_total": (snmp.get("RetransSegs"), "TCP segments sent again."),
            "hw_tcp_estab_resets_total": (snmp.get("EstabResets"), "Established connections reset."),
            "hw_tcp_listen_overflows_total": (ext.get("ListenOverflows"), "Accept queue overflows."),
            "hw_tcp_listen_drops_total": (ext.get("ListenDrops"), "Connections dropped at a listener."),
            "hw_tcp_abort_on_timeout_total": (ext.get("TCPAbortOnTimeout"), "Connections given up after timeouts."),
        }
        return [self._one(n, "counter", h, v) for n, (v, h) in rows.items()]

    def _paired(self, path: str, prefix: str) -> dict[str, float]:
        """Files that give a line of names and then a line of values."""
        rows = self._read(path, prefix)
        if len(rows) < 2:
            return {}
        return {k: float(v) for k, v in zip(rows[0][1:], rows[1][1:])}  # noqa: B905 - Python 3.9 has no strict=

    def _oom(self) -> list[Family]:
        values = {f[0]: float(f[1]) for f in self._read("vmstat", "oom_kill ") if len(f) == 2}
        return [
            self._one(
                "hw_oom_kills_total", "counter", "Processes the kernel killed for memory.", values.get("oom_kill")
            )
        ]


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
