"""What the eighth author's held-out set (`aa-`) needs beyond the rest: wear, heat, brakes, an absent scraper."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _grows(run: Run, begin: Place, over: float, factor: float) -> tuple[int, int]:
    """Steps become slower from `begin` on, over a share of the run, and stay so."""
    first = run.at(begin)
    full = min(run.at(1.0), first + max(1, round(over * run.spec.steps)))
    index = np.arange(run.spec.steps) + run.first
    grown = np.clip((index - first + 1) / (full - first), 0.0, 1.0)
    run.factor = np.maximum(run.factor, np.where(index >= first, 1.0 + (factor - 1.0) * grown, 1.0))
    return first, full


@fault
def wearing_link(run: Run, host: Hosts, factor: float, begin: Place, device: int = 3, retx: float = 2200.0) -> Show:
    """An optic fades: bit errors, so retransmits, grow from `begin` to the end, and every step with them."""
    first, _ = _grows(run, begin, 1.0, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, port = run.time_of(first), only(host), f"{run.spec.nic}_{device}"
        grown = ramp(since - 120.0, run.work_end - since)
        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
            sheet.rate(f"hw_rdma_{metric}_total", retx * share, since - 120.0, run.end, name, shape=grown, device=port)

    return show


@fault
def rack_heat(run: Run, hosts: Hosts, factor: float, begin: Place, over: float = 0.15, peak: float = 100.0) -> Show:
    """The coolant of a rack warms up: all GPUs of its hosts heat slowly, reach their limit and clock down."""
    first, full = _grows(run, begin, over, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(full)
        lead = 600.0
        for name in many(hosts):
            rack_place = float(run.rng.uniform(-2.0, 1.5))  # who sits higher is warmer
            for card in range(run.spec.gpus):
                gpu = str(card)
                hotter = peak - run.profile.hot_c + (1 - 1 / factor) * 25.0 + rack_place + float(run.rng.uniform(-2, 1))
                warm = ramp(since - lead, until - since + lead)
                sheet.add("hw_gpu_temperature_celsius", hotter, since - lead, run.work_end, name, shape=warm, gpu=gpu)
                slow = 1.0 / factor - 0.03 + float(run.rng.uniform(0, 0.05))
                held = ramp(since, until - since)
                sheet.scale("hw_gpu_clock_mhz", slow, since, run.work_end, name, shape=held, gpu=gpu)
                sheet.add("hw_gpu_power_watts", 35.0, since, run.work_end, name, shape=held, gpu=gpu)

    return show


@fault
def power_brake(run: Run, host: Hosts, factor: float, times: int, steps: int, begin: Place, text: str = "") -> Show:
    """A power supply asks its node to brake: all GPUs at a fraction of clock and power for some steps, then free."""
    starts = np.linspace(run.at(begin), run.at(1.0) - steps - 4, times).astype(int).tolist()
    lengths = [steps + int(run.rng.integers(-2, 3)) for _ in starts]
    for s, n in zip(starts, lengths, strict=True):
        run.slow(s, s + n, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, p = only(host), run.profile
        others = p.active_w / factor + p.spin_w * (1 - 1 / factor)
        for s, n in zip(starts, lengths, strict=True):
            since, until = run.time_of(s), run.time_of(s + n)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.05, since, until, name)
            sheet.add("hw_gpu_power_watts", 0.47 * p.active_w - others, since, until, name)
            sheet.add("hw_gpu_temperature_celsius", -5.0, since, until, name)
            if text:
                log.say(since + 25.0, text.replace("{host}", name).rstrip("\n"), run.hosts.index(name))

    return show


@fault
def locked_clock(run: Run, host: Hosts, factor: float, begin: Place = 0) -> Show:
    """Somebody locked the clocks of a host's GPUs and forgot: flat at a round number, cool, always busy."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, p = run.time_of(first), run.profile
        locked = round(p.clock_mhz / factor / 15.0) * 15.0
        others = p.active_w / factor + p.spin_w * (1 - 1 / factor)
        mine = p.idle_w + (p.active_w - p.idle_w) * factor**-2.0  # clock times voltage squared, over what leaks
        for name in many(host):
            sheet.put("hw_gpu_clock_mhz", locked, since, run.work_end, name)
            sheet.add("hw_gpu_power_watts", mine - others, since, run.work_end, name)
            sheet.add("hw_gpu_temperature_celsius", -3.0, since, run.work_end, name)

    return show


@fault
def cron_hog(run: Run, host: Hosts, factor: float, every: int, steps: int, begin: Place, procs: float = 90.0) -> Show:
    """A timer starts something heavy on one host again and again (a backup that compresses)."""
    starts = list(range(run.at(begin), run.at(1.0) - steps, every))
    for s in starts:
        run.slow(s, s + steps, factor * float(run.rng.uniform(0.98, 1.02)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            for s in starts:
                since, until = run.time_of(s), run.time_of(s + steps)
                sheet.add("hw_procs_running", procs, since, until, name)
                sheet.scale("hw_context_switches_total", 2.6, since, until, name)
                sheet.add("ray_node_cpu_utilization", 55.0, since, until, name)

    return show


@fault
def stuck_reader(run: Run, host: Hosts, at: Place, silent_s: float) -> Show:
    """One host's readers block in the kernel: its GPUs idle without a batch, all others spin in the collective."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.work_end
        for name in many(host):
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end, name)
            sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
            sheet.add("hw_procs_running", -9.0, since, run.end, name)
            sheet.add("hw_procs_blocked", 16.0, since, run.end, name)
            sheet.add("hw_io_pressure_full_pct", 78.0, since + 30.0, run.end, name)
            sheet.add("hw_io_pressure_some_pct", 90.0, since + 30.0, run.end, name)

    return show


@fault
def scraper_down(run: Run, begin: Place, end: Place) -> Show:
    """Prometheus itself was away for a while: nothing of any host is stored, training goes on."""

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, before = run.time_of(run.at(begin)), run.time_of(run.at(end)), sheet.in_database

        def stored(times: Floats) -> Floats:
            kept = before(times)
            return kept[(kept < since) | (kept >= until)]

        sheet.in_database = stored  # type: ignore[method-assign]

    return show


@fault
def loss_runaway(run: Run, begin: Place, to: float = 7.4, spikes: int = 5) -> Show:
    """Too high a learning rate: bursts of the gradient norm, each larger; after each the loss stands higher."""
    first = run.at(begin) - run.first
    places = np.linspace(first, first + 0.6 * (run.spec.steps - first), spikes).astype(int)
    rise = (to - float(run.loss[first])) / spikes
    grad: Floats = 0.85 + run.rng.normal(0, 0.02, run.spec.steps)
    for number, place in enumerate(places.tolist()):
        after = np.arange(run.spec.steps - place)
        run.loss[place:] += rise * (1 - np.exp(-after / 3.0)) + 0.5 * rise * np.exp(-after / 6.0) * (after > 0)
        grad[place:] += 6.0 * (number + 1) * np.exp(-after / 4.0) + 0.25

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.scalar("learning_raw_grad_norm", np.round(grad, 3))
        clipped: Floats = np.minimum(grad, 1.0)
        sheet.scalar("learning_grad_norm", np.round(clipped, 3))
        sheet.scalar("learning_loss", np.round(run.loss + run.rng.normal(0, 0.012, run.spec.steps), 3))

    return show


@fault
def plain_start(run: Run) -> Show:
    """An NVIDIA start that fails early: no probe of another maker's driver, no communicators yet."""

    def show(sheet: Sheet, log: JobLog) -> None:
        say = log.say

        def quieter(time: float, text: str, rank: int | None = None) -> None:
            if "UNKNOWN ERROR (303)" not in text and "MSCCL++" not in text:
                say(time, text, rank)

        log.say = quieter  # type: ignore[method-assign]

    return show
