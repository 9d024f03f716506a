"""What the held-out set `aq-` needs beyond the rest: dirty cables, fan trays, orphans, supplies, sinks, spikes."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, ends_at, fault, many, only, port_dark, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Floats, Run


def _at_work(run: Run, since: float) -> list[tuple[float, float]]:
    """The stretches after a moment in which the GPUs compute: what lies between the saves."""
    parts, begin = [], since
    for start, end, _ in run.saves:
        if end > begin:
            parts.append((begin, max(begin, start)))
            begin = max(begin, end)
    return [(a, b) for a, b in [*parts, (begin, run.work_end)] if b > a]


@fault
def aq_dirty_cable(
    run: Run, host: Hosts, factor: float, begin: Place, share: float = 0.4, device: int = 6, retx: float = 1300.0
) -> Show:
    """A cable with dirty ends loses frames in spells of a few steps that come at random."""
    first, n = run.at(begin) - run.first, run.spec.steps
    strength = np.zeros(n)
    i = first
    while i < n:
        long = int(run.rng.integers(2, 7))
        if run.rng.uniform() < share:
            strength[i : i + long] = float(run.rng.uniform(0.6, 1.1))
        i += long
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        port, shape, since = f"{run.spec.nic}_{device}", by_step(run, strength), run.time_of(run.at(begin))
        for metric, part in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
            name = f"hw_rdma_{metric}_total"
            sheet.rate(name, retx * part, since, run.work_end, only(host), shape=shape, device=port)

    return show


@fault
def aq_fan_tray(
    run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place, peak: float = 101.0, settle_s: float = 1500.0
) -> Show:
    """A fan tray stops: the GPUs behind it warm to a new balance and give up clock near their limit."""
    first, n = run.at(begin), run.spec.steps
    steps = np.arange(n) + run.first - first
    warmed = np.where(steps >= 0, 1.0 - np.exp(-np.maximum(steps, 0) * run.spec.step_s / settle_s), 0.0)
    lost = np.clip((warmed - 0.45) / 0.55, 0.0, 1.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * lost)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, since = run.profile, only(host), run.time_of(first)
        heat, held = by_step(run, warmed), by_step(run, lost)
        for gpu in gpus:
            card, mine = str(gpu), float(run.rng.uniform(-3.0, 2.0))
            cold = waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
            until = run.work_end
            sheet.add("hw_gpu_temperature_celsius", peak - p.hot_c + mine, since, until, name, shape=heat, gpu=card)
            sheet.add("hw_gpu_temperature_celsius", cold, since, until, name, shape=held, gpu=card)
            slow = 1.0 / factor - float(run.rng.uniform(0.0, 0.02))
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, shape=held, gpu=card)
            more = waited(run, factor) - 0.09 * p.active_w
            sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def aq_orphans(run: Run, hosts: Hosts, factor: float, end: Place, procs: float = 84.0) -> Show:
    """Loader processes of the job before were never reaped and spin on the CPUs until somebody kills them."""
    last = run.at(end)
    n = max(0, last - run.first)
    run.slow(run.first, last, factor * run.rng.uniform(0.98, 1.02, n))

    def show(sheet: Sheet, log: JobLog) -> None:
        until = ends_at(run, last)
        for name in many(hosts):
            mine = procs * float(run.rng.uniform(0.9, 1.1))
            sheet.add("hw_procs_running", mine, run.start, until, name)
            sheet.add("ray_node_cpu_utilization", 48.0, run.start, until, name)
            sheet.scale("hw_context_switches_total", 1.8, run.start, until, name)

    return show


@fault
def aq_supply_lost(run: Run, host: Hosts, factor: float, begin: Place, share: float = 0.68, text: str = "") -> Show:
    """One of a server's supplies fails: its firmware holds all GPUs at a common, lower power."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    cap = 10.0 * round(share * run.profile.active_w / 10.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(first)
        for gpu in range(run.spec.gpus):
            card, phase = str(gpu), float(run.rng.uniform(0, 6.28))

            def hum(t: Floats, phase: float = phase) -> Floats:
                return np.sin(2.3 * t + phase)

            for a, b in _at_work(run, since):
                sheet.put("hw_gpu_power_watts", cap, a, b, name, gpu=card)
                sheet.add("hw_gpu_power_watts", 3.0, a, b, name, shape=hum, gpu=card)
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.01, a, b, name, gpu=card)
                sheet.add("hw_gpu_clock_mhz", 25.0, a, b, name, shape=hum, gpu=card)
        if text:
            log.say(since + 3.0, filled(run, text, name, since + 3.0), run.hosts.index(name))

    return show


@fault
def aq_held_clock(run: Run, host: Hosts, gpu: int, factor: float, begin: Place) -> Show:
    """After a driver event one GPU holds a low clock: cool, flat, at work all the time while the rest waits."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    mhz = 15.0 * round(run.profile.clock_mhz / (1.0 + (factor - 1.0) * 1.2) / 15.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, card, since = run.profile, only(host), str(gpu), run.time_of(first)
        mine = p.idle_w + (p.active_w - p.idle_w) * (mhz / p.clock_mhz) ** 2
        less = mine - p.active_w + waited(run, factor)
        for a, b in _at_work(run, since):
            sheet.put("hw_gpu_clock_mhz", mhz, a, b, name, gpu=card)
            sheet.add("hw_gpu_power_watts", less, a, b, name, gpu=card)

    return show


@fault
def aq_thin_feed(run: Run, factor: float, begin: Place, over: float = 0.35, text: str = "", every: int = 10) -> Show:
    """Documents get longer, the tokenising workers fall behind: all GPUs wait longer for each batch."""
    first, n = run.at(begin), run.spec.steps
    index = np.arange(n) + run.first - first
    grown = np.clip((index + 1) / max(1.0, over * n), 0.0, 1.0) * run.rng.uniform(0.8, 1.2, n)
    strength = np.where(index >= 0, grown, 0.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)
    for s in range(first, run.at(1.0)):
        f = 1.0 + (factor - 1.0) * float(strength[s - run.first])
        run.await_data(s, s + 1, 1.0 - 1.0 / f)

    def show(sheet: Sheet, log: JobLog) -> None:
        shape, since, idle = by_step(run, strength), run.time_of(first), 1.0 - 1.0 / factor
        p, until = run.profile, run.work_end
        sheet.add("hw_gpu_power_watts", -idle * (p.spin_w - p.idle_w), since, until, shape=shape)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until, shape=shape)
        sheet.add("ray_node_cpu_utilization", 24.0, since, until, shape=shape)
        for s in range(first, run.at(1.0), every) if text else []:
            if s - run.first < len(run.ends):
                f = float(run.factor[s - run.first])
                late = (1.0 - 1.0 / f) * float(run.seconds[s - run.first])
                moment = run.time_of(s + 1) - 0.2
                said = text.replace("{waited}", f"{late:.2f}").replace("{at}", str(s))
                log.say(moment, filled(run, said, run.hosts[0], moment), 0)

    return show


@fault
def aq_neighbour_hours(
    run: Run, factor: float, windows: list[list[float]], cnp: float = 3300.0, retx: float = 0.0
) -> Show:
    """A neighbour's large job shares the spines at its hours: all NICs are told to slow down, none stands out."""
    places = [(run.at(float(a)), min(run.at(float(b)), run.at(1.0))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor * run.rng.uniform(0.96, 1.04, max(0, b - a)))
    weights = run.rng.uniform(0.7, 1.35, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b in places:
            since, until = run.time_of(a), ends_at(run, b)
            for host, weight in zip(run.hosts, weights.tolist(), strict=True):
                for metric, part in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.91), ("rx_ecn_pkts", 2.5)):
                    sheet.rate(f"hw_rdma_{metric}_total", cnp * part * weight, since, until, host)
                if retx:
                    sheet.rate("hw_rdma_tx_retx_pkts_total", retx * weight, since, until, host)

    return show


@fault
def aq_full_targets(run: Run, growth: list[float], text: str = "", after: int = 4) -> Show:
    """Storage targets fill up: each save takes longer, its writers sleep, clients complain."""
    run.save_growth = np.array(growth, dtype=float)

    def show(sheet: Sheet, log: JobLog) -> None:
        for number, (start, end, _) in enumerate(run.saves):
            much = growth[min(number + 1, len(growth) - 1)]
            for host in run.writers:
                sheet.add("hw_io_pressure_full_pct", 9.0 * much, start, end, host)
                sheet.add("hw_io_pressure_some_pct", 11.0 * much, start, end, host)
                sheet.add("hw_procs_blocked", 3.0 * much, start, end, host)
            if text and number + 1 >= after:
                name, moment = run.writers[number % len(run.writers)], start + 0.6 * (end - start)
                log.say(moment, filled(run, text, name, moment), run.hosts.index(name))

    return show


@fault
def aq_port_down(run: Run, host: Hosts, factor: float, begin: Place, device: int, text: str = "") -> Show:
    """A port loses its link for good; its siblings carry the traffic of eight."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(first)
        port_dark(run, sheet, name, device, since, run.end + 60.0)
        if text:
            log.say(since + 1.0, filled(run, text, name, since + 1.0), run.hosts.index(name))

    return show


@fault
def aq_port_dies(run: Run, host: Hosts, device: int, retried_s: float = 20.0) -> Show:
    """A port loses its link in the last step and nothing takes over: its queue pairs retry until they may not."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.work_end + 2.5
        sheet.put("hw_rdma_port_state", 0.0, since, run.end + 60.0, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 4.0, since, since + retried_s, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 7.0, since + retried_s - 3.0, name, device=port)

    return show


@fault
def aq_uncontained(run: Run, host: Hosts, gpu: int, text: str) -> Show:
    """The memory of one GPU returns what ECC cannot mend: counters and kernel log of its host say so."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.work_end + 4.0
        sheet.count("hw_gpu_ras_umc_ue_total", 1.0, since, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", 2.0, since, run.end + 60.0, name)
        if text:
            log.say(since, filled(run, text, name, since), run.hosts.index(name))

    return show


@fault
def aq_memory_spike(run: Run, host: Hosts, at: Place, text: str, over_s: float = 240.0, to_gb: float = 2142.0) -> Show:
    """Something on one host takes all memory within minutes and the kernel kills the trainer."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 70.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 8.0
        rank, since = run.hosts.index(name), run.work_end + 8.0 - over_s

        def grows(t: Floats) -> Floats:
            return np.clip((t - since) / over_s, 0.0, 1.0) ** 1.5

        sheet.add("ray_node_mem_used", to_gb * 1e9 - 206e9, since, dies + 1.0, name, shape=grows)
        sheet.count("hw_oom_kills_total", 1.0, dies - 2.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies + 1.0, filled(run, text, name, dies + 1.0), rank)

    return show


@fault
def aq_reader_asleep(run: Run, host: Hosts, at: Place, silent_s: float, text: str = "", every_s: float = 120.0) -> Show:
    """One host's reads never return: its loader sleeps, its GPUs idle without a kernel, all others spin for it."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, p = only(host), run.work_end + 1.5, run.profile
        sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.add("hw_procs_running", -8.0, since, run.end, name)
        sheet.add("hw_procs_blocked", 14.0, since, run.end, name)
        sheet.add("hw_io_pressure_full_pct", 48.0, since + 15.0, run.end, name)
        sheet.add("hw_io_pressure_some_pct", 57.0, since + 15.0, run.end, name)
        for number in range(1, 6 if text else 0):
            moment = since + number * every_s
            if moment < run.end - 10.0:
                log.say(moment, filled(run, text, name, moment), run.hosts.index(name))

    return show


@fault
def aq_dies_at_start(run: Run, text: str, after_s: float = 35.0) -> Show:
    """The trainer reads its arguments and ends at once, on all hosts, before it has set up anything."""
    run.zero_steps = True
    run.spec.init_s = after_s + 15.0

    def show(sheet: Sheet, log: JobLog) -> None:
        log.no_training = True
        for rank, name in enumerate(run.hosts):
            begin = run.training_begin + 6.0
            log.say(begin, f"[Node {rank} @ {name}] Training subprocess started (pid={1000 + rank})", rank)
            moment = begin + after_s + float(run.rng.uniform(0.0, 2.0))
            log.say(moment, filled(run, text, name, moment), rank)
            log.say(moment + 0.5, f"[Node {rank} @ {name}] Training subprocess exited with code 1", rank)
            log.exits[rank] = 1

    return show
