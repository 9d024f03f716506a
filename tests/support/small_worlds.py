"""Small clusters with a physics of their own: a merged log and a database written directly, every series a function.

Nothing here comes from the lab: cards draw what their work asks for, wander with their room, and each kind of trouble
is what it does to single series from a moment on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from worlds import START, World

from trackwalker.telemetry.blocks import BlockWriter, labels

Floats = NDArray[np.float64]
Change = Callable[[Floats, Floats], Floats]  # (times, values as they would be) -> as they are; NaN: no sample
EVERY_S = 20.0


@dataclass
class Small(World):
    """A job on machines with a few cards each; `laid` changes a series, by metric, host and GPU (or device)."""

    gpus: int = 4
    laid: dict[tuple[str, str, str], Change] = field(default_factory=dict)
    more: dict[str, tuple[float, float]] = field(default_factory=dict)  # further gauges of hosts: level and scatter
    cards: dict[str, float] = field(default_factory=dict)  # what each card says of itself
    counters: dict[str, float] = field(default_factory=dict)  # further counters of hosts: rate a second
    tags: dict[str, dict[str, str]] = field(default_factory=dict)  # further labels of what cards say of themselves
    kinds: dict[str, dict[str, str]] = field(default_factory=dict)  # labels of all that the cards of a host say
    recorded_s: float | None = None  # after the last step; None: to the end of the job

    def lay(self, metric: str, host: str, change: Change, part: str = "") -> None:
        """Change one series."""
        self.laid[metric, host, part] = change

    def lay_all(self, metric: str, host: str, change: Change) -> None:
        """Change a metric on all cards of a host."""
        for gpu in range(self.gpus):
            self.lay(metric, host, change, str(gpu))

    def when(self, step: int) -> float:
        """When a step began."""
        return self.ends[step - 1]

    def job(self, workspace: Path) -> Path:
        """Write it; returns the job's directory."""
        self.metrics = lambda host, time: {}
        return self.build(workspace, Path())

    def _database(self, target: Path, prometheus: Path) -> None:
        rng = np.random.default_rng(self.seed)
        writer = BlockWriter(target, seed=self.seed)
        until = self.end if self.recorded_s is None else self.last_end + self.recorded_s
        starts = np.array([START, *self.ends])
        for host in self.hosts:
            times = np.arange(START + 30.0 + rng.uniform(0, EVERY_S), until, EVERY_S)
            drift = 6.0 * np.sin(2 * np.pi * times / rng.uniform(1500, 5000) + rng.uniform(0, 6))
            at = np.searchsorted(starts, times) - 1
            into = times - starts[np.clip(at, 0, len(starts) - 1)]
            on = (times > START + self.warm_up_s) & (times < self.last_end)
            for gpu in range(self.gpus):
                chip = rng.normal(0, 9)
                load = np.where(on, 0.9 + 0.08 * np.cos(into), 0.12)
                noise = rng.normal(0, 1, (4, len(times)))
                series = {
                    "hw_gpu_utilization_percent": np.clip(np.where(on, 96.0, 100.0 * load) + 1.5 * noise[0], 0, 100),
                    "hw_gpu_power_watts": 95.0 + 420.0 * load + chip + drift + 16 * noise[1],
                    "hw_gpu_clock_mhz": np.where(on, 1755.0 - 2.0 * chip + 12 * noise[2], 345.0),
                    "hw_gpu_temperature_celsius": np.round(38.0 + 24.0 * load + chip / 3 + drift / 4 + noise[3]),
                    "hw_gpu_power_limit_watts": np.full(len(times), 600.0),
                    "hw_gpu_pcie_correctable_total": np.cumsum(rng.poisson(0.01, len(times))).astype(float),
                }
                series |= {m: np.full(len(times), value) for m, value in self.cards.items()}
                for metric, values in series.items():
                    extra = {"type": "sclk"} if metric == "hw_gpu_clock_mhz" else self.tags.get(metric, {})
                    extra = {**extra, **self.kinds.get(host, {})}
                    self._put(writer, metric, host, times, values, gpu=str(gpu), **extra)
            host_wide = {
                "hw_procs_running": rng.poisson(9, len(times)).astype(float),
                "hw_context_switches_total": np.cumsum(rng.normal(31_000, 900, len(times)) * EVERY_S),
                "hw_mem_available_bytes": 4.1e11 + 2e9 * rng.normal(0, 1, len(times)),
                "hw_io_pressure_full_pct": np.abs(rng.normal(0.2, 0.2, len(times))),
                "hw_net_rx_errors_total": np.zeros(len(times)),
            }
            host_wide |= {m: mean + wide * rng.normal(0, 1, len(times)) for m, (mean, wide) in self.more.items()}
            host_wide |= {m: np.cumsum(rng.poisson(r * EVERY_S, len(times))) * 1.0 for m, r in self.counters.items()}
            for metric, values in host_wide.items():
                self._put(writer, metric, host, times, values)
        head = labels("tb_step", host=self.hosts[0])
        writer.add([head], _ms(np.array(self.ends)), np.arange(len(self.steps), dtype=float)[None, :])
        writer.close()

    def _put(self, writer: BlockWriter, metric: str, host: str, times: Floats, values: Floats, **extra: str) -> None:
        part = extra.get("gpu", extra.get("mount", ""))
        for key in ((metric, host, part), (metric, "*", part), ("*", host, part), ("*", host, "*")):
            if key in self.laid:
                values = self.laid[key](times, values)
        kept = np.isfinite(values)
        if kept.any():
            writer.add([labels(metric, host=host, **extra)], _ms(times[kept]), values[kept][None, :])


def since(moment: float, change: Callable[[Floats], Floats]) -> Change:
    """A change from a moment on."""
    return lambda times, values: np.where(times >= moment, change(values), values)


def gone(moment: float) -> Change:
    """No sample from a moment on."""
    return since(moment, lambda values: np.full(len(values), np.nan))


def noisy_steps(count: int, seconds: float, seed: int = 3, slow: tuple[int, int, float] | None = None) -> list[float]:
    """Step times with a long tail, a stretch of them slower by a factor."""
    rng = np.random.default_rng(seed)
    steps = seconds * (1.0 + 0.01 * rng.gamma(1.5, 1.0, count))
    if slow is not None:
        steps[slow[0] : slow[1]] *= slow[2]
    return [round(float(s), 3) for s in steps]


def _ms(times: Floats) -> NDArray[np.int64]:
    return np.round(times * 1000).astype(np.int64)
