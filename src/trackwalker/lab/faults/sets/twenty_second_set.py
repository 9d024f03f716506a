"""What the held-out set `ar-` needs beyond the rest: rough links, failing fans, half-fed racks, scanners."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, ends_at, fault, many, only, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _levels(run: Run, first: int, last: int, spread: float) -> Floats:
    """A strength for each step: about 1 inside [first, last), never the same twice, 0 outside."""
    index = np.arange(run.spec.steps) + run.first
    rough = np.clip(run.rng.lognormal(0.0, spread, run.spec.steps), 0.4, 1.9)
    return np.where((index >= first) & (index < last), rough, 0.0)


@fault
def ar_rough_link(
    run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, device: int = 1, retx: float = 700.0
) -> Show:
    """Links with symbol errors: how much is sent again, and how long a step takes, changes with every step."""
    strength = _levels(run, run.at(begin), run.at(end), 0.3)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        shape = by_step(run, strength)
        for number, name in enumerate(many(hosts)):
            port, mine = f"{run.spec.nic}_{(device + 3 * number) % 8}", retx * float(run.rng.uniform(0.7, 1.3))
            for metric, part in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
                rises = f"hw_rdma_{metric}_total"
                sheet.rate(rises, mine * part, run.steps_from, run.work_end, name, shape=shape, device=port)

    return show


@fault
def ar_fan_tray(
    run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place, over: float = 0.15, peak: float = 96.0
) -> Show:
    """A fan tray slows down: the GPUs behind it grow warm, reach their limit and give up clock bit by bit."""
    first, n = run.at(begin) - run.first, run.spec.steps
    strength = np.clip((np.arange(n) - first) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, held = run.profile, only(host), by_step(run, strength)
        since, until = run.time_of(run.at(begin)), run.work_end
        heat, cooled = ramp(since - 420.0, 400.0), (1.0 - 1.0 / factor) * 25.0
        for number, gpu in enumerate(gpus):
            card, less = str(gpu), 2.2 * number
            hotter = peak - p.hot_c - less
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 420.0, until, name, shape=heat, gpu=card)
            sheet.add("hw_gpu_temperature_celsius", cooled, since, until, name, shape=held, gpu=card)
            slow = 1.0 / factor - 0.02 + 0.012 * number
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, shape=held, gpu=card)
            more = waited(run, factor) - 0.07 * p.active_w
            sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def ar_lost_supply(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, share: float = 0.68) -> Show:
    """A power shelf fails: the boards behind it hold their GPUs at a lower limit until it is exchanged."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), ends_at(run, last)
        cap = 10.0 * round(share * run.profile.active_w / 10.0)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                phase = float(run.rng.uniform(0.0, 6.28))

                def hum(t: Floats, phase: float = phase) -> Floats:
                    return np.sin(0.9 * t + phase)

                card = str(gpu)
                sheet.put("hw_gpu_power_watts", cap, since, until, name, gpu=card)
                sheet.add("hw_gpu_power_watts", 3.0, since, until, name, shape=hum, gpu=card)
                slow = 1.0 / factor + float(run.rng.uniform(-0.02, 0.01))
                sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", -5.0, since, until, name, gpu=card)

    return show


@fault
def ar_fixed_clock(run: Run, host: Hosts, mhz: float, bound: float = 0.8) -> Show:
    """Application clocks left behind by a benchmark: all GPUs of a host stand at one low clock from the start."""
    factor = 1.0 + bound * (run.profile.clock_mhz / mhz - 1.0)
    run.slow(run.first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, since, until = run.profile, run.steps_from, run.work_end
        mine = p.idle_w + (p.active_w - p.idle_w) * (mhz / p.clock_mhz) ** 1.7
        for name in many(host):
            sheet.put("hw_gpu_clock_mhz", mhz, since, until, name)
            sheet.add("hw_gpu_power_watts", mine - p.active_w + waited(run, factor), since, until, name)
            sheet.add("hw_gpu_temperature_celsius", -4.0, since, until, name)

    return show


@fault
def ar_scanner(run: Run, hosts: Hosts, factor: float, windows: list[list[float]], procs: float = 85.0) -> Show:
    """A security agent scans the file systems of some hosts in windows: many runnable threads, busy CPUs."""
    places = [(run.at(float(a)), min(run.at(float(b)), run.at(1.0))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor * run.rng.uniform(0.96, 1.05, max(0, b - a)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b in places:
            since, until = run.time_of(a), ends_at(run, b)
            for name in many(hosts):
                much = float(run.rng.uniform(0.85, 1.15))
                sheet.add("hw_procs_running", procs * much, since, until, name)
                sheet.add("ray_node_cpu_utilization", 48.0 * much, since, until, name)
                sheet.scale("hw_context_switches_total", 2.3, since, until, name)

    return show


@fault
def ar_busy_target(run: Run, growth: list[float], text: str) -> Show:
    """The file system's servers fall behind from save to save; the writers wait in the kernel, all alike."""
    run.save_growth = np.array(growth, dtype=float)

    def show(sheet: Sheet, log: JobLog) -> None:
        for number, (start, end, _) in enumerate(run.saves):
            much = growth[min(number + 1, len(growth) - 1)]
            for name in run.writers:
                sheet.add("hw_io_pressure_full_pct", 9.0 * much, start, end, name)
                sheet.add("hw_procs_blocked", 4.0 * much, start, end, name)
            if much >= 1.6:
                moment, name = start + 0.6 * (end - start), run.writers[number % len(run.writers)]
                said = text.replace("{sent}", f"{moment - 44:.0f}").replace("{dl}", f"{moment:.0f}")
                log.say(moment, filled(run, said, name, moment), run.hosts.index(name))

    return show


@fault
def ar_fork_deadlock(run: Run, host: Hosts, at: Place, silent_s: float, text: str, every_s: float = 300.0) -> Show:
    """The loader of one host waits for a lock that died with a forked thread: its GPUs idle, the others spin."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, p = only(host), run.work_end + 3.0, run.profile
        sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.scale("hw_gpu_clock_mhz", 0.12, since, run.end, name)
        sheet.scale("hw_procs_running", 0.15, since, run.end, name)
        for number in range(1, int(silent_s // every_s)):
            moment = since + number * every_s
            said = text.replace("{waited}", f"{number * every_s:.0f}")
            log.say(moment, filled(run, said, name, moment), run.hosts.index(name))

    return show


@fault
def ar_eval_burst(run: Run, host: Hosts, at: Place, text: str, over_s: float = 110.0, to_gb: float = 2150.0) -> Show:
    """An evaluation set is read into the memory of one host at once, and the kernel kills the trainer."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, over_s + 60.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + over_s
        rank, since = run.hosts.index(name), run.work_end + 2.0
        full = to_gb * 1e9 - 205e9
        sheet.add("ray_node_mem_used", full, since, dies + 1.0, name, shape=ramp(since, over_s - 8.0))
        sheet.count("hw_oom_kills_total", 1.0, dies, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies + 1.0, filled(run, text, name, dies + 1.0), rank)

    return show


@fault
def ar_port_fails(run: Run, host: Hosts, device: int) -> Show:
    """A port loses its link just after the last step and stays dark; what was in flight is retried in vain."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.work_end + 1.0
        sheet.put("hw_rdma_port_state", 0.0, since, run.end + 60.0, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 9.0, since, since + 24.0, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 5.0, since + 20.0, name, device=port)

    return show


@fault
def ar_gpu_lost(run: Run, host: Hosts, gpu: int) -> Show:
    """A GPU stops answering after the last step: the kernel log notes it, its readings fall to nothing."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, card = only(host), run.work_end + 3.0, str(gpu)
        sheet.add("hw_dmesg_gpu_errors_total", 3.0, since, run.end + 60.0, name)
        for metric in ("power_watts", "clock_mhz", "temperature_celsius"):
            sheet.put(f"hw_gpu_{metric}", 0.0, since, run.end + 60.0, name, gpu=card)

    return show


@fault
def ar_allreduce_bursts(run: Run, factor: float, begin: Place, bursts: int, steps: int, cnp: float = 2500.0) -> Show:
    """Other jobs share the spine now and then: all NICs are marked at once, each such step is long."""
    starts = np.linspace(run.at(begin), run.at(1.0) - steps - 1, bursts).astype(int).tolist()
    for s in starts:
        run.slow(s, s + steps, factor * run.rng.uniform(0.96, 1.05, min(steps, run.at(1.0) - s)))
    weights = run.rng.uniform(0.7, 1.35, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), ends_at(run, s + steps)
            for name, weight in zip(run.hosts, weights.tolist(), strict=True):
                for metric, part in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.9), ("rx_ecn_pkts", 2.3)):
                    sheet.rate(f"hw_rdma_{metric}_total", cnp * part * weight, since, until, name)

    return show
