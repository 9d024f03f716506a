"""What one host's exporters report when nothing is wrong, moment by moment (calibrated to a 24-node MI355X cluster)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Floats

FAST_S, NET_S, SLOW_S, RAY_S = 10.0, 20.0, 60.0, 15.0
DEVICES = 8
_BYTES, _PACKETS = 2.0**26, 2.0**14  # of counters that grow by 10^11 and 10^7 between two scrapes
Rng = np.random.Generator


@dataclass
class Row:
    """One series of one host before it is written."""

    metric: str
    labels: dict[str, str]
    values: Floats  # a gauge's values, or a counter's increase per second
    counter: bool = False
    lifetime: float = 0.0
    unit: float = 1.0  # written in multiples of this: bits below the noise only make the database large


class HostRows:
    """One host of a run: its exporters' pages at any times."""

    def __init__(self, sheet: Sheet, number: int, rng: Rng, stranger: str | None = None) -> None:
        self._sheet, self._run, self._rng = sheet, sheet.run, rng
        self._number, self.host = number, stranger or sheet.run.hosts[number]
        self._writes = self.host in sheet.run.writers

    def exporters(self) -> Iterator[tuple[float, Callable[[Floats], Iterator[Row]]]]:
        """Every exporter (or part of one) with its interval."""
        yield FAST_S, self._fast
        yield NET_S, self._network
        yield SLOW_S, self._slow
        if self._run.spec.ray:
            yield RAY_S, self._ray

    def _old(self, low: int, high: int) -> float:
        """What a counter has seen in its life."""
        return float(self._rng.integers(low, high))

    def _state(self, times: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Per moment: training, saving, spinning (each 0 or 1) and the share of a step spent waiting."""
        run = self._run
        training = ((times >= run.steps_from) & (times < run.busy_until)).astype(float)
        saving = np.zeros(len(times))
        for start, end, _ in run.saves:
            saving[(times >= start) & (times < end)] = 1.0
        if run.last_save_begins is not None:
            saving[times >= run.last_save_begins] = 1.0
        training = training * (1.0 - saving)
        spinning = (times >= run.work_end).astype(float) if run.hang_step is not None else np.zeros(len(times))
        dead = times >= self._sheet.idle_after(self.host)
        index = np.clip(np.searchsorted(run.ends, times), 0, max(0, len(run.ends) - 1))
        waiting = 1.0 - 1.0 / run.factor[index] if len(run.ends) else np.zeros(len(times))
        live = (~dead).astype(float)
        return training * live, saving * live, spinning * live, waiting

    def _fast(self, t: Floats) -> Iterator[Row]:
        training, saving, spinning, waiting = self._state(t)
        profile, run, rng = self._run.profile, self._run, self._rng
        h = {"host": self.host}
        busy = training * (profile.active_w * (1 - waiting) + profile.spin_w * waiting - profile.idle_w)
        level = profile.idle_w + busy + spinning * (profile.spin_w - profile.idle_w) + saving * 25.0
        for gpu in range(run.spec.gpus):
            bias, g = rng.normal(0, 6), {**h, "gpu": str(gpu)}
            power = level + training * bias + rng.normal(0, 1, len(t)) * (3.0 + 9.0 * training)
            yield Row("hw_gpu_power_watts", g, power)
            share = (power - profile.idle_w) / (profile.active_w - profile.idle_w)
            heat = 38.0 + (profile.hot_c - 38.0) * np.clip(share, 0, 1.2)
            yield Row("hw_gpu_temperature_celsius", g, heat + rng.normal(0, 1.5) + rng.normal(0, 0.7, len(t)))
            up = 150.0 + (profile.clock_mhz - 150.0) * np.clip(training + spinning, 0, 1)
            clock = up + rng.normal(0, 12, len(t)) * training
            yield Row("hw_gpu_clock_mhz", {**g, "type": "sclk"}, clock, unit=10.0)
        runnable = 2.0 + 16.0 * training + 10.0 * spinning + 4.0 * saving
        yield Row("hw_procs_running", h, rng.poisson(runnable).astype(float))
        yield Row("hw_procs_blocked", h, rng.poisson(0.3 + 14.0 * saving * self._writes).astype(float))
        stray = (rng.random(len(t)) < 0.05) * rng.exponential(0.5, len(t))  # mostly exactly zero, as the kernel has it
        pressure = np.clip(saving * self._writes * rng.uniform(25, 65, len(t)) + stray, 0, 85)
        yield Row("hw_io_pressure_full_pct", h, pressure, unit=1 / 64)
        yield Row("hw_io_pressure_some_pct", h, pressure * 1.15, unit=1 / 64)
        lost = rng.exponential(0.08, len(t)) + saving * self._writes * rng.uniform(400, 2100, len(t))
        yield Row("hw_tcp_retransmits_total", h, lost, True, self._old(10_000, 9_000_000))
        yield Row("hw_oom_kills_total", h, np.zeros(len(t)), True)
        yield Row("hw_scrape_duration_seconds", h, rng.normal(2.4, 0.15, len(t)), unit=1 / 64)

    def _network(self, t: Floats) -> Iterator[Row]:
        training, _, _, waiting = self._state(t)
        rng, none = self._rng, np.zeros(len(t))
        flow = training * (1.0 - 0.9 * waiting) * 11.5e9
        for device in range(DEVICES):
            d = {"host": self.host, "device": f"{self._run.spec.nic}_{device}", "port": "1"}
            moved = flow * rng.uniform(0.97, 1.03, len(t))
            usual = self._old(0, 90_000)
            old = self._sheet.lifetime_of("hw_rdma_tx_retx_pkts_total", self.host, d["device"], usual)
            yield Row("hw_rdma_tx_bytes_total", d, moved, True, self._old(10**12, 9 * 10**14), _BYTES)
            yield Row("hw_rdma_rx_bytes_total", d, moved * 0.99, True, self._old(10**12, 9 * 10**14), _BYTES)
            yield Row("hw_rdma_tx_pkts_total", d, moved / 4096, True, self._old(10**9, 9 * 10**10), _PACKETS)
            yield Row("hw_rdma_ccl_tx_pkts_total", d, moved / 4300, True, self._old(10**9, 9 * 10**10), _PACKETS)
            for name, lifetime in (
                ("tx_retx_pkts", old),
                ("ccl_tx_retx_pkts", old * 0.9),
                ("tx_ack_timeout", old / 700),
                ("req_tx_retry_excd_err", self._old(0, 3)),
                ("req_rx_cqe_err", self._old(0, 3)),
                ("rx_dup_request", old * 0.7),
            ):
                yield Row(f"hw_rdma_{name}_total", d, none, True, float(np.floor(lifetime)))
            mild = training * rng.exponential(0.4, len(t))
            yield Row("hw_rdma_rx_cnp_pkts_total", d, mild, True, self._old(0, 400_000))
            yield Row("hw_rdma_tx_cnp_pkts_total", d, mild, True, self._old(0, 400_000))
            yield Row("hw_rdma_rx_ecn_pkts_total", d, mild * 2, True, self._old(0, 400_000))
            yield Row("hw_rdma_port_state", d, np.ones(len(t)))

    def _slow(self, t: Floats) -> Iterator[Row]:
        training, saving, spinning, _ = self._state(t)
        profile, h, flat = self._run.profile, {"host": self.host}, np.zeros(len(t))
        alive = (t >= self._run.training_begin + 50.0) & (t < self._sheet.idle_after(self.host))
        for gpu in range(self._run.spec.gpus):
            g = {**h, "gpu": str(gpu)}
            yield Row("hw_gpu_vram_total_bytes", g, flat + profile.vram_gb * 1e9)
            used = np.where(alive, flat + 0.93 * profile.vram_gb * 1e9, 3e8)
            yield Row("hw_gpu_vram_used_bytes", g, used)
            for block in ("umc", "xgmi", "gfx", "mmhub", "sdma"):
                for kind in ("ue", "ce"):
                    metric = f"hw_gpu_ras_{block}_{kind}_total"
                    yield Row(metric, g, flat, True, self._sheet.lifetime_of(metric, self.host, str(gpu), 0.0))
            for kind in ("correctable", "nonfatal", "fatal"):
                yield Row(f"hw_gpu_pcie_{kind}_total", g, flat, True)
        yield Row("hw_dmesg_gpu_errors_total", h, flat)
        yield Row("hw_gpu_user_processes", h, np.where(alive, flat + float(self._run.spec.gpus), 0.0))
        writing = saving * self._writes
        yield Row("hw_mem_dirty_bytes", h, self._rng.uniform(1e7, 9e7, len(t)) + writing * 4e10, unit=2.0**16)
        yield Row("hw_mem_writeback_bytes", h, writing * 8e8)
        switches = 9e4 + 6e4 * training + 3e4 * spinning
        yield Row("hw_context_switches_total", h, switches, True, self._old(10**9, 9 * 10**11))
        for name in ("listen_drops", "listen_overflows", "estab_resets", "abort_on_timeout"):
            yield Row(f"hw_tcp_{name}_total", h, flat, True, self._old(0, 900))
        e = {**h, "device": "eno0"}
        yield Row("hw_net_rx_bytes_total", e, 2e6 + writing * 2e7, True, self._old(10**11, 9 * 10**13))
        yield Row("hw_net_tx_bytes_total", e, 2e6 + writing * 1e9, True, self._old(10**11, 9 * 10**13))
        for name in ("rx_errors", "tx_errors", "rx_drop"):
            yield Row(f"hw_net_{name}_total", e, flat, True, self._old(0, 4000))

    def _ray(self, t: Floats) -> Iterator[Row]:
        training, saving, spinning, _ = self._state(t)
        run, rng = self._run, self._rng
        who = {"ip": f"10.4.7.{self._number % 250 + 4}", "SessionName": "session_2026", "Version": "2.48.0"}
        for gpu in range(run.spec.gpus):
            used = 100.0 * np.clip(training + spinning, 0, 1) - training * rng.integers(0, 4, len(t)) + saving * 2
            device = {"GpuIndex": str(gpu), "GpuDeviceName": f"{run.profile.maker}_{run.profile.name}"}
            yield Row("ray_node_gpus_utilization", {**who, **device}, used)
        head = 3e9 if self._number == 0 else 0.0  # the coordinator and Ray's own services
        memory = 62e9 + head + (t >= run.steps_from - 60.0) * 142e9 + rng.normal(0, 6e8, len(t))
        if self._writes:
            kept = np.zeros(len(t))
            own = np.random.default_rng([int(run.job_id), self._number, 1]).uniform(1.146e12, 1.191e12)
            for start, end, _ in run.saves:
                grown = np.clip((t - start) / max(end - start, 1.0), 0, 1) * own
                kept = np.maximum(kept, np.where(t >= start, grown, 0))
            memory = memory + kept + saving * 1e11
        yield Row("ray_node_mem_used", who, memory, unit=2.0**24)
        yield Row("ray_node_mem_total", who, np.full(len(t), 2.16e12))
        cpu = 3.0 + 22.0 * training + 11.0 * spinning + 6.0 * saving + rng.normal(0, 0.8, len(t))
        yield Row("ray_node_cpu_utilization", who, cpu.clip(0, 100), unit=0.25)
