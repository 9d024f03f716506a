"""What a diagnosis from a cluster's own store costs that store: many hosts with dcgm-exporter and node_exporter.

Writes a database of so many hosts (8 GPUs and 8 InfiniBand ports each, the names of those exporters) for a real
Prometheus, one of them with a hot GPU, and a log of the same time; then reads it as `diagnose --metrics` does. On a
busy machine the CPU seconds are what can be compared.
Usage: .venv/bin/python bench/foreign.py [--hosts 1000] [--hours 2] [--interval 30]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from trackwalker.diagnose import engine
from trackwalker.diagnose.elsewhere import with_metrics
from trackwalker.job.resolve import resolve
from trackwalker.observe.prometheus import ensure_prometheus
from trackwalker.observe.server import Server
from trackwalker.telemetry.blocks import BlockWriter, labels
from trackwalker.telemetry.foreign.names import load_maps
from trackwalker.telemetry.foreign.remote import Access

GPU = ("SM_CLOCK", "MEM_CLOCK", "GPU_TEMP", "MEMORY_TEMP", "POWER_USAGE", "GPU_UTIL", "MEM_COPY_UTIL", "FB_USED",
       "XID_ERRORS", "PCIE_REPLAY_COUNTER", "TOTAL_ENERGY_CONSUMPTION")  # fmt: skip
NODE = ("node_procs_running", "node_procs_blocked", "node_context_switches_total", "node_vmstat_oom_kill",
        "node_memory_MemAvailable_bytes", "node_memory_Dirty_bytes", "node_pressure_cpu_waiting_seconds_total",
        "node_pressure_io_stalled_seconds_total", "node_netstat_Tcp_RetransSegs", "up")  # fmt: skip
IB = ("node_infiniband_port_data_transmitted_bytes_total", "node_infiniband_port_data_received_bytes_total",
      "node_infiniband_port_transmit_wait_total", "node_infiniband_symbol_error_total",
      "node_infiniband_link_downed_total", "node_infiniband_state_id")  # fmt: skip
STEP_S = 10.0


def write_database(folder: Path, hosts: list[str], begin: float, hours: float, interval: float) -> int:
    """The samples; returns how many."""
    writer, chance = BlockWriter(folder), np.random.default_rng(1)
    times = np.arange(begin, begin + hours * 3600, interval)
    late = times > begin + 0.6 * hours * 3600
    for number, host in enumerate(hosts):
        at = np.rint(1000 * (times + chance.uniform(0, interval))).astype(np.int64)
        names, rows = [], []
        for metric in GPU:
            for gpu in range(8):
                who = {"Hostname": host, "gpu": str(gpu), "UUID": f"GPU-{number}-{gpu}", "modelName": "NVIDIA H100"}
                names.append(labels(f"DCGM_FI_DEV_{metric}", **who, instance=f"{host}:9400", job="dcgm"))
                level = {"SM_CLOCK": 1980.0, "GPU_TEMP": 60.0, "POWER_USAGE": 650.0, "GPU_UTIL": 99.0}.get(metric, 50.0)
                row = np.rint(level * (1 + 0.01 * chance.standard_normal(len(at))))
                if metric in ("XID_ERRORS", "PCIE_REPLAY_COUNTER"):
                    row = np.zeros(len(at))
                elif "ENERGY" in metric:
                    row = np.cumsum(np.full(len(at), 650_000.0 * interval))
                elif number == 7 and gpu == 3 and metric in ("SM_CLOCK", "GPU_TEMP"):
                    row = np.where(late, 1200.0 if metric == "SM_CLOCK" else 92.0, row)
                elif metric == "POWER_USAGE":  # whoever waits for it draws less
                    row = np.where(late, 0.85 * row, row)
                rows.append(row)
        who = {"instance": f"{host}:9100", "job": "node"}
        for metric in NODE:
            names.append(labels(metric, **who))
            still = {"up": 1.0, "node_procs_running": 18.0, "node_procs_blocked": 0.0, "node_vmstat_oom_kill": 0.0}
            noise = chance.integers(0, 3, len(at)) * (metric == "node_procs_running")
            grows = np.cumsum(chance.integers(0, 20, len(at))) * 1.0
            grows = grows * 0.001 if "pressure" in metric else grows + 1e11 if "memory" in metric else grows
            rows.append(still[metric] + noise if metric in still else grows)
        for metric in IB:
            for port in range(8):
                names.append(labels(metric, **who, device=f"mlx5_{port}", port="1"))
                still = metric.endswith(("_id", "symbol_error_total", "link_downed_total", "wait_total"))
                rows.append(np.full(len(at), 4.0) if still else np.cumsum(chance.integers(1, 1 << 30, len(at))) * 1.0)
        writer.add(names, at, np.array(rows))
    return writer.close()


def write_log(path: Path, hosts: int, begin: float, hours: float) -> None:
    """A Megatron-style log whose steps grow slower when the GPU gets hot."""
    lines, at, step = [f"JOB_NODELIST=n[1-{hosts}]"], begin, 0
    total = int(hours * 3600 / STEP_S)
    while at < begin + hours * 3600 - 60:
        step += 1
        took = STEP_S * (1.3 if at > begin + 0.6 * hours * 3600 else 1.0)
        at += took
        stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        lines.append(
            f" [{stamp}] iteration {step:8d}/{total:8d} | consumed samples: {step * 8:12d} | elapsed time per "
            f"iteration (ms): {1000 * took:.1f} | learning rate: 1.000000E-04 | global batch size:     8 | lm loss: "
            f"{5 / step**0.1:.6E} | loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |"
        )
    path.write_text("\n".join(lines) + "\n")


def own_cpu() -> float:
    """CPU seconds of this process and of those it has waited for."""
    return sum(os.times()[:4])


def cpu_of(pid: int) -> float:
    """CPU seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Write, read, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--interval", type=float, default=30.0)
    options = parser.parse_args()
    hosts = [f"n{i}" for i in range(1, options.hosts + 1)]
    begin = (time.time() - options.hours * 3600 - 600) // 30 * 30
    with tempfile.TemporaryDirectory(prefix="foreign-") as name:
        folder = Path(name)
        count = write_database(folder / "data", hosts, begin, options.hours, options.interval)
        log = folder / "slurm-1.out"
        write_log(log, options.hosts, begin, options.hours)
        print(f"{options.hosts} hosts, {count:,} samples stored", flush=True)
        (folder / "prometheus.yml").write_text("global: {scrape_interval: 30s}\n")
        binary = ensure_prometheus(print)
        server = Server(binary, folder / "data", folder / "prometheus.yml", folder / "prometheus.log", (), {})
        try:
            while not server.ready():
                time.sleep(0.1)
            began, ours, theirs = time.monotonic(), own_cpu(), cpu_of(server.process.pid)
            span = (begin, begin + options.hours * 3600)
            with with_metrics(resolve(str(log), folder), Access(server.url), None, span, load_maps()) as borrowed:
                read = time.monotonic()
                print(borrowed.says)
                theirs = cpu_of(server.process.pid) - theirs
                print(f"read in {read - began:.1f} s: CPU {own_cpu() - ours:.1f} s ours, {theirs:.1f} s the store's")
                ours = own_cpu()
                verdict = engine.diagnose(borrowed.job).verdict
                done = time.monotonic()
                print(f"diagnosed in {done - read:.1f} s, CPU {own_cpu() - ours:.1f} s: {verdict.summary}")
                print([(c.cause, c.hosts) for c in verdict.causes])
                print(f"in all {done - began:.1f} s; load of this machine {os.getloadavg()[0]:.1f}")
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
