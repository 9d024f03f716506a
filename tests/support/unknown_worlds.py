"""Worlds with trouble that no playbook describes, and worlds without a culprit: what the deviation sweep is judged by.

A world is a simulated job whose machines wander (autocorrelated noise on every gauge, errors that trickle on some
hosts all along), a slow phase, and one change of a few series that begins with it. Half of the kinds are HELD_OUT:
they were not looked at while the sweep was written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Shape, Sheet
from trackwalker.lab.sheet.writer import stamps, write_sheet
from trackwalker.lab.world import EPOCH, Floats, Run, WorldSpec, make_hosts
from trackwalker.telemetry.blocks import BlockWriter, labels

GAUGES = (
    ("hw_gpu_power_watts", 14.0), ("hw_gpu_temperature_celsius", 1.5), ("hw_procs_running", 2.0),
    ("hw_gpu_clock_mhz", 12.0), ("hw_scrape_duration_seconds", 0.2), ("ray_node_cpu_utilization", 1.5),
)  # fmt: skip
TRICKLES = (
    "hw_gpu_pcie_correctable_total",
    "hw_tcp_listen_drops_total",
    "hw_net_rx_drop_total",
    "hw_tcp_estab_resets_total",
)


@dataclass
class Plugin:
    """A user's own metric on every host: a level with its wander, or a counter's rate."""

    metric: str
    level: float
    wander: float
    counter: bool = False
    changes: dict[str, float] = field(default_factory=dict)  # host to what is added while it is slow
    extra: dict[str, str] = field(default_factory=dict)


@dataclass
class World:
    """What a kind of trouble may lay over a run."""

    run: Run
    sheet: Sheet
    since: float
    until: float
    rng: np.random.Generator
    plugins: list[Plugin] = field(default_factory=list)
    culprits: list[str] = field(default_factory=list)
    strength: float = 1.0  # of the trouble: a tenth, a hundredth of what is written below

    def pick(self, number: int = 1) -> list[str]:
        """Culprits: never the first host, which also coordinates."""
        self.culprits = sorted(self.rng.choice(self.run.hosts[1:], number, replace=False).tolist())
        return self.culprits

    def rate(self, metric: str, per_s: float, **pick: str) -> None:
        """A counter of the culprits counts while the run is slow."""
        for host in self.culprits or self.pick():
            self.sheet.rate(metric, self.strength * per_s, self.since, self.until, host, **pick)

    def add(self, metric: str, amount: float, **pick: str) -> None:
        """A gauge of the culprits is off while the run is slow."""
        for host in self.culprits or self.pick():
            self.sheet.add(metric, self.strength * amount, self.since, self.until, host, **pick)

    def plugin(
        self, metric: str, level: float, wander: float, change: float, counter: bool = False, **extra: str
    ) -> None:
        """A metric of the users' own, on all hosts, that is off on the culprits."""
        changes = dict.fromkeys(self.culprits or self.pick(), self.strength * change)
        self.plugins.append(Plugin(metric, level, wander, counter, changes, extra))


Kind = Callable[[World], None]

TUNED: dict[str, Kind] = {
    "pcie-errors-one-gpu": lambda w: w.rate("hw_gpu_pcie_correctable_total", 20.0, gpu="1"),
    "nic-receive-errors": lambda w: w.rate("hw_net_rx_errors_total", 900.0, device="eno0"),
    "listen-drops": lambda w: w.rate("hw_tcp_listen_drops_total", 6.0),
    "plugin-fan-slows": lambda w: w.plugin("fan_rpm", 9000.0, 120.0, -4200.0, fan="fan3"),
    "plugin-cpu-steal": lambda w: w.plugin("node_cpu_steal_seconds_total", 0.02, 0.01, 0.8, counter=True),
    "xgmi-errors": lambda w: w.rate("hw_gpu_ras_xgmi_ce_total", 3.0, gpu="0"),
    "blocked-tasks": lambda w: w.add("hw_procs_blocked", 9.0),
    "plugin-disk-errors": lambda w: w.plugin("nvme_media_errors_total", 0.0, 0.0, 2.5, counter=True, disk="nvme1"),
    "two-hosts-resets": lambda w: (w.pick(2), w.rate("hw_tcp_abort_on_timeout_total", 1.5))[-1],
}  # fmt: skip

HELD_OUT: dict[str, Kind] = {
    "memory-corrected-storm": lambda w: w.rate("hw_gpu_ras_umc_ce_total", 40.0, gpu="1"),
    "plugin-slow-dns": lambda w: w.plugin("dns_lookup_seconds", 0.004, 0.001, 0.35),
    "connection-resets": lambda w: w.rate("hw_tcp_estab_resets_total", 4.0),
    "receive-drops": lambda w: w.rate("hw_net_rx_drop_total", 60.0, device="eno0"),
    "plugin-supply-sags": lambda w: w.plugin("psu_input_volts", 12.1, 0.03, -1.1, psu="2"),
    "plugin-health-flag": lambda w: w.plugin("switch_asic_ok", 1.0, 0.0, -1.0),
    "rare-completion-errors": lambda w: w.rate("hw_rdma_req_rx_cqe_err_total", 0.04, device="ionic_2"),
    "copy-engine-errors": lambda w: w.rate("hw_gpu_ras_sdma_ce_total", 0.5, gpu="0"),
    "plugin-queue-grows": lambda w: w.plugin("nvme_queue_depth", 3.0, 0.5, 60.0, disk="nvme0"),
}  # fmt: skip


def _all_along(metric: str, level: float, wander: float, change: float, **extra: str) -> Kind:
    """One host is unlike the others from the first step on: the run has one speed, and no past without it."""

    def lay(world: World) -> None:
        world.since, world.until = world.run.start, world.run.end + 1.0
        world.plugin(metric, level, wander, change, **extra)

    return lay


ALL_ALONG: dict[str, Kind] = {
    "narrow-link": _all_along("hw_gpu_pcie_link_width", 16.0, 0.0, -12.0, gpu="1"),
    "plugin-slow-cpu": _all_along("cpu_frequency_mhz", 3400.0, 15.0, -1500.0),
}


def _fine(world: World) -> None:
    """Nothing beside what is normal."""


def _all_alike(world: World) -> None:
    """Every host has the same trouble: nobody is to be named."""
    world.plugins.append(Plugin("dns_lookup_seconds", 0.004, 0.001, False, dict.fromkeys(world.run.hosts, 0.2)))


def _one_burst(world: World) -> None:
    """One clump of errors within the slow phase, over in seconds: chance, not the reason of an hour."""
    at = world.since + 0.4 * (world.until - world.since)
    world.sheet.count("hw_net_rx_errors_total", 300.0, at, world.run.hosts[2], device="eno0")


# (slow, what is laid over it): none of them has a culprit.
NOBODY: dict[str, tuple[bool, Kind]] = {
    "healthy": (False, _fine),
    "healthy-one-burst": (False, _one_burst),
    "slow-nothing-recorded": (True, _fine),
    "slow-all-alike": (True, _all_alike),
    "slow-one-burst": (True, _one_burst),
}


def make(
    kind: Kind, out: Path, seed: int, *, slow: bool = True, nodes: int = 8, gpus: int = 2, strength: float = 1.0,
    hang: bool = False,
) -> tuple[Job, list[str]]:  # fmt: skip
    """Write a world; its job and its culprits. One that hangs does so where it would have become slow."""
    rng = np.random.default_rng(seed)
    saves = int(rng.choice([0, 40]))
    spec = WorldSpec(
        nodes=nodes, gpus=gpus, steps=170, step_s=float(rng.uniform(12, 26)), total=170, checkpoint_period=saves
    )
    hosts = make_hosts(nodes, rng)
    run = Run(spec, hosts, str(int(rng.integers(4000, 9999))), float(EPOCH + seed * 7000), rng)
    begin, end = run.at(float(rng.uniform(0.4, 0.55))), run.at(float(rng.uniform(0.8, 1.0)))
    if hang:
        run.hang_step, run.silent_s, spec.ending = begin, 1500.0, "cancelled"
    elif slow:
        run.slow(begin, end, float(rng.uniform(1.1, 1.4)))
    run.play()
    until = run.end + 1.0 if hang else run.time_of(end)
    world = World(run, Sheet(run), run.time_of(begin), until, rng, strength=strength)
    _wander(world)
    kind(world)
    return _written(world, out), world.culprits


def _wander(world: World) -> None:
    """Machines are never still: gauges wander for minutes, and here and there an error trickles."""
    run, rng = world.run, world.rng
    for host in run.hosts:
        for metric, size in GAUGES:
            world.sheet.add(metric, size, run.start, run.end + 1, host, shape=_walk(rng, run.start, run.end))
    for metric in TRICKLES:
        world.sheet.rate(metric, float(rng.uniform(0.002, 0.02)), run.start, run.end, str(rng.choice(run.hosts)))


def _walk(rng: np.random.Generator, start: float, end: float) -> Shape:
    """Noise with a memory of some minutes."""
    grid = np.arange(start, end + 60.0, 30.0)
    values = np.zeros(len(grid))
    for i in range(1, len(grid)):
        values[i] = 0.85 * values[i - 1] + rng.normal(0, 0.5)
    return lambda t: np.interp(t, grid, values)


def _written(world: World, out: Path) -> Job:
    run, workspace = world.run, out / "outputs"
    name = f"{run.job_id}-JAX-{run.spec.model}"
    (workspace / name).mkdir(parents=True)
    JobLog(run).write(workspace / f"{name}.log", workspace / name / "ray_logs")
    (workspace / name / "log").symlink_to(f"../{name}.log")
    writer = BlockWriter(workspace / name / "prometheus", seed=int(run.job_id))
    write_sheet(world.sheet, writer)
    for plugin in world.plugins:
        _write_plugin(world, plugin, writer)
    writer.close()
    return resolve(str(workspace / name), workspace)


def _write_plugin(world: World, plugin: Plugin, writer: BlockWriter) -> None:
    run, rng = world.run, world.rng
    for host in run.hosts:
        times: Floats = np.arange(run.training_begin + 45.0 + rng.uniform(0, 10), run.end, 10.0)
        values = plugin.level + plugin.wander * (_walk(rng, run.start, run.end)(times) + rng.normal(0, 1, len(times)))
        values += plugin.changes.get(host, 0.0) * ((times >= world.since) & (times < world.until))
        if plugin.counter:
            values = np.floor(100 * np.cumsum(np.maximum(values, 0.0) * 10.0)) / 100
        series = labels(plugin.metric, host=host, instance=f"{host}:9400", job="node_hw", **plugin.extra)
        writer.add([series], stamps(times), values[None, :])
