"""What the exporters of all hosts report during a run: quiet weather first, faults laid over it."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trackwalker.lab.blocks import BlockWriter, Labels, labels
from trackwalker.lab.world import Floats, Run

Shape = Callable[[Floats], Floats]  # time -> strength between 0 and 1

FAST_S, NET_S, SLOW_S, RAY_S = 10.0, 20.0, 60.0, 15.0
DEVICES = 8


def ramp(start: float, seconds: float) -> Shape:
    """Grows from 0 to 1 after `start`."""
    return lambda t: np.clip((t - start) / max(seconds, 1e-9), 0.0, 1.0)


@dataclass(frozen=True)
class Overlay:
    """One change of one metric: `what` is add, scale, set, rate or jump (of a counter, once)."""

    what: str
    metric: str
    amount: float
    start: float
    end: float
    host: str | None
    pick: tuple[tuple[str, str], ...] = ()  # labels that must match
    shape: Shape | None = None

    def apply(self, times: Floats, values: Floats) -> Floats:
        inside = (times >= self.start) & (times < self.end)
        strength = self.shape(times) if self.shape is not None else np.ones(len(times))
        if self.what == "jump":
            return values
        if self.what in ("add", "rate"):
            return values + np.where(inside, self.amount * strength, 0.0)
        if self.what == "scale":
            return values * np.where(inside, 1.0 + (self.amount - 1.0) * strength, 1.0)
        return np.where(inside, self.amount, values)


@dataclass
class Row:
    """One series of one host before it is written."""

    metric: str
    labels: dict[str, str]
    values: Floats  # a gauge's values, or a counter's increase per second
    counter: bool = False
    lifetime: float = 0.0
    whole: bool = True  # written as whole numbers


class Sheet:
    """Collects overlays, then writes the database."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._overlays: list[Overlay] = []
        self._gone: dict[str, float] = {}
        self._down: list[tuple[str, float, float]] = []
        self._frozen: list[tuple[str, float, float]] = []
        self._absent: list[tuple[str, str | None]] = []
        self._cut: tuple[float, float] | None = None
        self._lifetime: dict[tuple[str, str, str], float] = {}
        self._idle_after: dict[str, float] = {}
        self._tb: dict[str, Floats] = {}

    def add(
        self,
        metric: str,
        amount: float,
        start: float,
        end: float,
        host: str | None = None,
        *,
        shape: Shape | None = None,
        **pick: str,
    ) -> None:
        """A gauge rises (or falls) by an amount."""
        self._lay("add", metric, amount, start, end, host, shape, pick)

    def scale(
        self,
        metric: str,
        factor: float,
        start: float,
        end: float,
        host: str | None = None,
        *,
        shape: Shape | None = None,
        **pick: str,
    ) -> None:
        """A gauge changes by a factor."""
        self._lay("scale", metric, factor, start, end, host, shape, pick)

    def put(self, metric: str, value: float, start: float, end: float, host: str | None = None, **pick: str) -> None:
        """A gauge stands at a value."""
        self._lay("set", metric, value, start, end, host, None, pick)

    def rate(
        self,
        metric: str,
        per_s: float,
        start: float,
        end: float,
        host: str | None = None,
        *,
        shape: Shape | None = None,
        **pick: str,
    ) -> None:
        """A counter rises by so much a second."""
        self._lay("rate", metric, per_s, start, end, host, shape, pick)

    def count(self, metric: str, number: float, at: float, host: str, **pick: str) -> None:
        """A counter jumps once."""
        self._lay("jump", metric, number, at, np.inf, host, None, pick)

    def _lay(
        self,
        what: str,
        metric: str,
        amount: float,
        start: float,
        end: float,
        host: str | None,
        shape: Shape | None,
        pick: dict[str, str],
    ) -> None:
        self._overlays.append(Overlay(what, metric, amount, start, end, host, tuple(pick.items()), shape))

    def lifetime(self, metric: str, host: str, total: float, device: str = "") -> None:
        """What a counter had counted before the job began."""
        self._lifetime[metric, host, device] = total

    def gone(self, host: str, at: float) -> None:
        """The host stops answering for good."""
        self._gone[host] = at

    def down(self, host: str, start: float, end: float) -> None:
        """The host's exporters cannot be scraped for a while."""
        self._down.append((host, start, end))

    def freeze(self, host: str, start: float, end: float) -> None:
        """The exporter serves the same page again and again: fresh time stamps, old values."""
        self._frozen.append((host, start, end))

    def absent(self, pattern: str, host: str | None = None) -> None:
        """Metrics that this cluster (or host) does not export."""
        self._absent.append((pattern, host))

    def only_between(self, start: float, end: float) -> None:
        """The database holds nothing outside."""
        self._cut = (start, end)

    def process_gone(self, host: str, at: float) -> None:
        """The host lives, its training process does not."""
        self._idle_after[host] = at

    def scalar(self, tag: str, values: Floats) -> None:
        """A training scalar of rank 0, one value a step."""
        self._tb[tag] = values

    def write(self, writer: BlockWriter) -> None:
        """Write every host's series."""
        for number, host in enumerate(self.run.hosts):
            rng = np.random.default_rng([int(self.run.job_id), number])
            for every, rows in self._rows(host, number, rng):
                self._put(writer, host, every, rows, rng)
        self._training(writer)

    def _times(self, host: str, every: float, rng: np.random.Generator) -> Floats:
        run = self.run
        begin = run.training_begin + 40.0 + rng.uniform(0, every)
        times = np.arange(begin, min(run.end, self._gone.get(host, run.end)), every)
        keep = rng.random(len(times)) >= run.spec.lost_scrapes
        for name, start, end in self._down:
            if name == host:
                keep &= (times < start) | (times >= end)
        if self._cut:
            keep &= (times >= self._cut[0]) & (times < self._cut[1])
        return np.asarray(times[keep])

    def _put(
        self,
        writer: BlockWriter,
        host: str,
        every: float,
        rows: Callable[[Floats], Iterator[Row]],
        rng: np.random.Generator,
    ) -> None:
        times = self._times(host, every, rng)
        if len(times) < 2:
            return
        ray = every == RAY_S
        base = {"instance": f"{host}:{55080 if ray else 9400}", "job": "ray" if ray else "node_hw"}
        names: list[Labels] = []
        table: list[Floats] = []
        for row in rows(times):
            if any(fnmatch.fnmatch(row.metric, p) and h in (None, host) for p, h in self._absent):
                continue
            values = row.values
            for overlay in self._overlays:
                if overlay.metric == row.metric and overlay.host in (None, host):
                    if all(row.labels.get(k) == v for k, v in overlay.pick):
                        values = overlay.apply(times, values)
            if row.counter:
                elapsed = np.diff(times, prepend=times[0])
                values = row.lifetime + np.cumsum(np.maximum(values, 0.0) * elapsed)
                for jump in (o for o in self._overlays if o.what == "jump" and o.metric == row.metric):
                    if jump.host in (None, host) and all(row.labels.get(k) == v for k, v in jump.pick):
                        values = values + jump.amount * (times >= jump.start)
            if row.whole:
                values = np.floor(values) if row.counter else np.round(values)
            table.append(self._freeze(host, times, values))
            names.append(labels(row.metric, **row.labels, **base))
        up = labels("up", **base)
        stamps = np.round((times + self.run.spec.clock_skew_s.get(host, 0.0)) * 1000).astype(np.int64)
        if every in (FAST_S, RAY_S):
            names.append(up)
            table.append(np.ones(len(times)))
        writer.add(names, stamps, np.array(table))
        if every in (FAST_S, RAY_S):
            self._failed_scrapes(writer, up, host, every, times)

    def _failed_scrapes(self, writer: BlockWriter, up: Labels, host: str, every: float, times: Floats) -> None:
        """A scrape that fails is recorded too: `up` 0, after the last good one."""
        if host in self._gone and self._cut is None:
            late = np.arange(times[-1] + every, self.run.end, every)
            writer.add([up], np.round(late * 1000).astype(np.int64), np.zeros((1, len(late))))

    def _freeze(self, host: str, times: Floats, values: Floats) -> Floats:
        for name, start, end in self._frozen:
            inside = (times >= start) & (times < end)
            if name == host and inside.any():
                values = np.where(inside, values[int(np.argmax(inside))], values)
        return values

    def _rows(
        self, host: str, number: int, rng: np.random.Generator
    ) -> Iterator[tuple[float, Callable[[Floats], Iterator[Row]]]]:
        yield FAST_S, lambda t: self._fast(host, t, rng)
        yield NET_S, lambda t: self._network(host, t, rng)
        yield SLOW_S, lambda t: self._slow(host, t, rng)
        if self.run.spec.ray:
            yield RAY_S, lambda t: self._ray(host, number, t, rng)

    def _state(self, host: str, times: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Per moment: training, saving, spinning (each 0 or 1) and the share of a step spent waiting."""
        run = self.run
        training = ((times >= run.steps_from) & (times < run.work_end)).astype(float)
        saving = np.zeros(len(times))
        for start, end, _ in run.saves:
            saving[(times >= start) & (times < end)] = 1.0
        training = training * (1.0 - saving)
        spinning = (times >= run.work_end).astype(float) if run.hang_step is not None else np.zeros(len(times))
        dead = times >= self._idle_after.get(host, np.inf)
        index = np.clip(np.searchsorted(run.ends, times), 0, max(0, len(run.ends) - 1))
        waiting = 1.0 - 1.0 / run.factor[index] if len(run.ends) else np.zeros(len(times))
        live = (~dead).astype(float)
        return training * live, saving * live, spinning * live, waiting

    def _fast(self, host: str, t: Floats, rng: np.random.Generator) -> Iterator[Row]:
        training, saving, spinning, waiting = self._state(host, t)
        profile, run = self.run.profile, self.run
        h = {"host": host}
        busy = training * (profile.active_w * (1 - waiting) + profile.spin_w * waiting - profile.idle_w)
        level = profile.idle_w + busy + spinning * (profile.spin_w - profile.idle_w) + saving * 25.0
        for gpu in range(run.spec.gpus):
            bias, g = rng.normal(0, 6), {**h, "gpu": str(gpu)}
            power = level + training * bias + rng.normal(0, 1, len(t)) * (3.0 + 9.0 * training)
            yield Row("hw_gpu_power_watts", g, power)
            share = (power - profile.idle_w) / (profile.active_w - profile.idle_w)
            warm = (
                38.0 + (profile.hot_c - 38.0) * np.clip(share, 0, 1.2) + rng.normal(0, 1.5) + rng.normal(0, 0.7, len(t))
            )
            yield Row("hw_gpu_temperature_celsius", g, warm)
            clock = (
                150.0
                + (profile.clock_mhz - 150.0) * np.clip(training + spinning, 0, 1)
                + rng.normal(0, 12, len(t)) * training
            )
            yield Row("hw_gpu_clock_mhz", {**g, "type": "sclk"}, np.round(clock, -1))
        runnable = 2.0 + 16.0 * training + 10.0 * spinning + 4.0 * saving
        yield Row("hw_procs_running", h, rng.poisson(runnable).astype(float))
        writer = host in run.writers
        yield Row("hw_procs_blocked", h, rng.poisson(0.3 + 14.0 * saving * writer).astype(float))
        pressure = np.clip(saving * writer * rng.uniform(25, 65, len(t)) + rng.exponential(0.05, len(t)), 0, 99)
        yield Row("hw_io_pressure_full_pct", h, np.round(pressure, 2), whole=False)
        yield Row("hw_io_pressure_some_pct", h, np.round(pressure * 1.15, 2), whole=False)
        yield Row(
            "hw_tcp_retransmits_total",
            h,
            rng.exponential(0.08, len(t)) + saving * writer * rng.uniform(400, 2100, len(t)),
            True,
            float(rng.integers(1e4, 9e6)),
        )
        yield Row("hw_oom_kills_total", h, np.zeros(len(t)), True)
        yield Row("hw_scrape_duration_seconds", h, np.round(rng.normal(2.4, 0.15, len(t)), 4), whole=False)

    def _network(self, host: str, t: Floats, rng: np.random.Generator) -> Iterator[Row]:
        training, _, _, waiting = self._state(host, t)
        flow = training * (1.0 - 0.9 * waiting) * 11.5e9
        for device in range(DEVICES):
            d = {"host": host, "device": f"{self.run.spec.nic}_{device}", "port": "1"}
            moved = flow * rng.uniform(0.97, 1.03, len(t))
            old = self._lifetime.get(("hw_rdma_tx_retx_pkts_total", host, d["device"]), float(rng.integers(0, 90_000)))
            yield Row("hw_rdma_tx_bytes_total", d, moved, True, float(rng.integers(1e12, 9e14)))
            yield Row("hw_rdma_rx_bytes_total", d, moved * 0.99, True, float(rng.integers(1e12, 9e14)))
            yield Row("hw_rdma_tx_pkts_total", d, moved / 4096, True, float(rng.integers(1e9, 9e10)))
            yield Row("hw_rdma_ccl_tx_pkts_total", d, moved / 4300, True, float(rng.integers(1e9, 9e10)))
            for name, lifetime in (
                ("tx_retx_pkts", old),
                ("ccl_tx_retx_pkts", old * 0.9),
                ("tx_ack_timeout", old / 700),
                ("req_tx_retry_excd_err", float(rng.integers(0, 3))),
                ("req_rx_cqe_err", float(rng.integers(0, 3))),
                ("rx_dup_request", old * 0.7),
            ):
                yield Row(f"hw_rdma_{name}_total", d, np.zeros(len(t)), True, np.floor(lifetime))
            mild = training * rng.exponential(0.4, len(t))
            yield Row("hw_rdma_rx_cnp_pkts_total", d, mild, True, float(rng.integers(0, 4e5)))
            yield Row("hw_rdma_tx_cnp_pkts_total", d, mild, True, float(rng.integers(0, 4e5)))
            yield Row("hw_rdma_rx_ecn_pkts_total", d, mild * 2, True, float(rng.integers(0, 4e5)))
            yield Row("hw_rdma_port_state", d, np.ones(len(t)))

    def _slow(self, host: str, t: Floats, rng: np.random.Generator) -> Iterator[Row]:
        training, saving, spinning, _ = self._state(host, t)
        profile, h, flat = self.run.profile, {"host": host}, np.zeros(len(t))
        alive = (t >= self.run.training_begin + 50.0) & (t < self._idle_after.get(host, np.inf))
        for gpu in range(self.run.spec.gpus):
            g = {**h, "gpu": str(gpu)}
            yield Row("hw_gpu_vram_total_bytes", g, flat + profile.vram_gb * 1e9)
            used = np.where(alive, 0.93 * profile.vram_gb * 1e9, 3e8)
            yield Row("hw_gpu_vram_used_bytes", g, used)
            for block in ("umc", "xgmi", "gfx", "mmhub", "sdma"):
                for kind in ("ue", "ce"):
                    metric = f"hw_gpu_ras_{block}_{kind}_total"
                    old = self._lifetime.get((metric, host, str(gpu)), 0.0)
                    yield Row(metric, g, flat, True, old)
            for kind in ("correctable", "nonfatal", "fatal"):
                yield Row(f"hw_gpu_pcie_{kind}_total", g, flat, True)
        yield Row("hw_dmesg_gpu_errors_total", h, flat)
        yield Row("hw_gpu_user_processes", h, np.where(alive, float(self.run.spec.gpus), 0.0))
        writer = host in self.run.writers
        yield Row("hw_mem_dirty_bytes", h, rng.uniform(1e7, 9e7, len(t)) + saving * writer * 4e10)
        yield Row("hw_mem_writeback_bytes", h, saving * writer * 8e8)
        yield Row(
            "hw_context_switches_total", h, 9e4 + 6e4 * training + 3e4 * spinning, True, float(rng.integers(1e9, 9e11))
        )
        for name in ("listen_drops", "listen_overflows", "estab_resets", "abort_on_timeout"):
            yield Row(f"hw_tcp_{name}_total", h, flat, True, float(rng.integers(0, 900)))
        e = {**h, "device": "eno0"}
        yield Row("hw_net_rx_bytes_total", e, 2e6 + saving * writer * 2e7, True, float(rng.integers(1e11, 9e13)))
        yield Row("hw_net_tx_bytes_total", e, 2e6 + saving * writer * 1e9, True, float(rng.integers(1e11, 9e13)))
        for name in ("rx_errors", "tx_errors", "rx_drop"):
            yield Row(f"hw_net_{name}_total", e, flat, True, float(rng.integers(0, 4000)))

    def _ray(self, host: str, number: int, t: Floats, rng: np.random.Generator) -> Iterator[Row]:
        training, saving, spinning, _ = self._state(host, t)
        who = {"ip": f"10.4.7.{number % 250 + 4}", "SessionName": "session_2026", "Version": "2.48.0"}
        for gpu in range(self.run.spec.gpus):
            used = 100.0 * np.clip(training + spinning, 0, 1) - training * rng.integers(0, 4, len(t)) + saving * 2
            device = {"GpuIndex": str(gpu), "GpuDeviceName": f"AMD_Instinct_{self.run.profile.name}"}
            yield Row("ray_node_gpus_utilization", {**who, **device}, used)
        memory = 62e9 + (t >= self.run.steps_from - 60.0) * 142e9 + rng.normal(0, 6e8, len(t))
        if host in self.run.writers:
            kept = np.zeros(len(t))
            for start, end, _ in self.run.saves:
                kept = np.maximum(
                    kept, np.where(t >= start, np.clip((t - start) / max(end - start, 1.0), 0, 1) * 1.16e12, 0)
                )
            memory = memory + kept + saving * 9e10
        yield Row("ray_node_mem_used", who, memory)
        yield Row("ray_node_mem_total", who, np.full(len(t), 2.16e12))
        cpu = 3.0 + 22.0 * training + 11.0 * spinning + 6.0 * saving + rng.normal(0, 0.8, len(t))
        yield Row("ray_node_cpu_utilization", who, np.round(np.clip(cpu, 0, 100), 1), whole=False)

    def _training(self, writer: BlockWriter) -> None:
        """Rank 0's scalars: a step's samples carry its own wall time, and fills pad the silences."""
        run = self.run
        n = len(run.ends)
        if not n:
            return
        head = {"host": run.hosts[0], "instance": f"{run.hosts[0]}:9400", "job": "node_hw"}
        steps = np.arange(run.first, run.first + n).astype(float)
        grad = 0.8 + 0.6 * np.exp(-steps / 80.0) + run.rng.normal(0, 0.02, n)
        tags = {
            "step": steps,
            "learning_loss": np.round(run.loss[:n] + run.rng.normal(0, 0.012, n), 3),
            "learning_grad_norm": np.round(grad, 4),
            "learning_raw_grad_norm": np.round(grad * 1.05, 4),
            "learning_current_learning_rate": 3e-4 * np.minimum(1.0, (steps + 1) / 500.0),
            "learning_moe_lb_loss": np.round(0.0102 + run.rng.normal(0, 1e-4, n), 6),
            "perf_step_time_seconds": np.round(run.seconds, 3),
            "perf_per_device_tokens_per_sec": np.round(run.spec.tokens / run.seconds, 3),
            "perf_per_device_tflops_per_sec": np.round(run.spec.tokens / run.seconds * 0.0634, 3),
            "metrics_plugin_staleness_fill": np.zeros(n),
        } | {k: v[:n] for k, v in self._tb.items()}
        times, table = run.ends.copy(), np.array(list(tags.values()))
        fills = np.arange(times[-1] + 150.0, run.end, 150.0)
        if len(fills):
            last = np.repeat(table[:, -1:], len(fills), axis=1)
            last[list(tags).index("metrics_plugin_staleness_fill")] = 1.0
            times, table = np.concatenate([times, fills]), np.concatenate([table, last], axis=1)
        keep = np.ones(len(times), bool)
        if self._cut:
            keep = (times >= self._cut[0]) & (times < self._cut[1])
        names = [labels(f"tb_{tag}", **head) for tag in tags]
        shown = [i for i, tag in enumerate(tags) if not any(fnmatch.fnmatch(f"tb_{tag}", p) for p, _ in self._absent)]
        if keep.any() and shown:
            stamps = np.round(times[keep] * 1000).astype(np.int64)
            writer.add([names[i] for i in shown], stamps, table[np.ix_(shown, np.flatnonzero(keep))])
