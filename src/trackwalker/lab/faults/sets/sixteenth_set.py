"""What the held-out set `al-` needs beyond the rest: loose connectors, dry paste, shared breakers, staircase leaks."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, ends_at, fault, many, only, port_dark, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


@fault
def al_loose_connector(
    run: Run, host: Hosts, factor: float, begin: Place, device: int = 6, retx: float = 1300.0, share: float = 0.45
) -> Show:
    """A connector sits badly: for some steps packets are lost, more or fewer, then none for a while, without rhythm."""
    first, n = run.at(begin) - run.first, run.spec.steps
    strength, i, bad = np.zeros(n), first, True
    while i < n:
        length = int(run.rng.integers(6, 22)) if bad else int(run.rng.integers(6, 22) * (1 - share) / share)
        if bad:
            strength[i : i + length] = run.rng.uniform(0.5, 1.0)
        i, bad = i + max(2, length), not bad
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        port, shape = f"{run.spec.nic}_{device}", by_step(run, strength)
        for metric, part in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
            sheet.rate(
                f"hw_rdma_{metric}_total",
                retx * part,
                run.steps_from,
                run.work_end,
                only(host),
                shape=shape,
                device=port,
            )

    return show


@fault
def al_flaps_then_dead(
    run: Run, host: Hosts, factor: float, flaps: list[float], dead: Place, device: int = 1, away_s: float = 70.0
) -> Show:
    """A port loses its link for a minute now and then, and at last for good; its siblings carry the traffic."""
    steps = [run.at(float(f)) for f in flaps]
    for s in steps:
        run.extra[s - run.first] += away_s * 0.3
    last = run.at(dead)
    run.slow(last, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        spans = [(run.time_of(s) + 3.0, run.time_of(s) + 3.0 + away_s) for s in steps]
        spans.append((run.time_of(last) + 1.0, run.end))
        for since, until in spans:
            port_dark(run, sheet, name, device, since, until)

    return show


@fault
def al_congestion_walk(run: Run, factor: float, begin: Place, end: Place = 1.0, cnp: float = 2400.0) -> Show:
    """Other tenants load the spine, now more, now less: all NICs are told to slow down, each by its own share."""
    first, last, n = run.at(begin) - run.first, run.at(end) - run.first, run.spec.steps
    strength, level = np.zeros(n), 0.8
    for i in range(first, min(last, n)):
        level = float(np.clip(level + run.rng.normal(0, 0.09), 0.35, 1.15))
        strength[i] = level
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)
    weights = run.rng.uniform(0.65, 1.35, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        shape = by_step(run, strength)
        for name, weight in zip(run.hosts, weights.tolist(), strict=True):
            for metric, part in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.94), ("rx_ecn_pkts", 2.3)):
                sheet.rate(
                    f"hw_rdma_{metric}_total", cnp * part * weight, run.steps_from, run.work_end, name, shape=shape
                )

    return show


@fault
def al_dry_paste(
    run: Run, host: Hosts, gpu: int, factor: float, begin: Place, over: float = 0.35, peak: float = 88.0
) -> Show:
    """A GPU's thermal paste has pumped out: it climbs to its limit, then clocks down and up below it."""
    first, n = run.at(begin), run.spec.steps
    index = np.arange(n) + run.first
    grown = np.clip((index - first) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * grown)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since, until = only(host), str(gpu), run.time_of(first), run.work_end
        held = by_step(run, grown)
        climbed = ramp(since - 900.0, 1500.0)
        hotter = peak - run.profile.hot_c
        cooled = waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38.0)
        sheet.add("hw_gpu_temperature_celsius", hotter, since - 900.0, until, name, shape=climbed, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", 0.5 * cooled, since, until, name, shape=held, gpu=card)
        drop = 1.0 - (1.0 / factor - 0.015)

        def hunting(t: Floats) -> Floats:
            return held(t) * (1.0 + 0.35 * np.sin(0.09 * t))

        sheet.scale("hw_gpu_clock_mhz", 1.0 - drop, since, until, name, shape=hunting, gpu=card)
        more = waited(run, factor) - 0.12 * run.profile.active_w
        sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def al_breaker_windows(run: Run, hosts: Hosts, factor: float, windows: list[list[float]], share: float = 0.7) -> Show:
    """The controller of a rack's feed lowers the limit of its GPUs when the feed is near its rating, and lifts it."""
    places = [(run.at(float(a)), run.at(float(b))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor * float(run.rng.uniform(0.99, 1.01)))

    def show(sheet: Sheet, log: JobLog) -> None:
        p = run.profile
        want = share * p.active_w - (p.active_w - waited(run, factor))
        for a, b in places:
            since, until = run.time_of(a), ends_at(run, b)
            for name in many(hosts):
                sheet.add("hw_gpu_power_watts", want, since, until, name)
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.01, since, until, name)

    return show


@fault
def al_weak_cards(run: Run, host: Hosts, gpus: list[int], mhz: list[float], begin: Place, bound: float = 0.7) -> Show:
    """Cards of one board hold lower clocks (their voltage regulator sags): cool, frugal, never waiting for anybody."""
    p, first = run.profile, run.at(begin)
    factor = max(1.0 + bound * (p.clock_mhz / m - 1.0) for m in mhz)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(first)
        for card, speed in zip(gpus, mhz, strict=True):
            sheet.add("hw_gpu_clock_mhz", speed - p.clock_mhz, since, run.work_end, name, gpu=str(card))
            mine = p.idle_w + (p.active_w - p.idle_w) * (speed / p.clock_mhz) ** 1.7
            sheet.add(
                "hw_gpu_power_watts",
                mine - (p.active_w - waited(run, factor)),
                since,
                run.work_end,
                name,
                gpu=str(card),
            )

    return show


@fault
def al_agent_rollout(
    run: Run, hosts: Hosts, begins: list[float], factors: list[float], procs: float = 75.0, end: Place = 1.0
) -> Show:
    """A new version of a node agent goes out to some hosts, one after the other, and spins on their processors."""
    names = many(hosts)
    firsts, last = [run.at(float(b)) for b in begins], run.at(end)
    for first, factor in zip(firsts, factors, strict=True):
        n = max(0, min(last, run.at(1.0)) - first)
        run.slow(first, first + n, 1.0 + (factor - 1.0) * run.rng.uniform(0.85, 1.15, n))

    def show(sheet: Sheet, log: JobLog) -> None:
        until = ends_at(run, last)
        for name, first in zip(names, firsts, strict=True):
            since, mine = run.time_of(first), procs * float(run.rng.uniform(0.85, 1.2))
            sheet.add("hw_procs_running", mine, since, until, name)
            sheet.scale("hw_context_switches_total", 2.6, since, until, name)
            sheet.add("ray_node_cpu_utilization", 44.0, since, until, name)

    return show


@fault
def al_throttled_bucket(
    run: Run, factor: float, begin: Place, end: Place = 1.0, text: str = "", every: int = 9
) -> Show:
    """The object store answers slowly: all hosts wait for their batches, longer and shorter, and retry now and then."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    waits = 1.0 + (factor - 1.0) * run.rng.gamma(6.0, 1 / 6.0, last - first)
    run.slow(first, last, waits)
    for s in range(first, last):
        run.await_data(s, s + 1, 1.0 - 1.0 / float(waits[s - first]))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, idle = run.time_of(first), ends_at(run, last), 1.0 - 1.0 / factor
        sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)
        sheet.scale("hw_net_rx_bytes_total", 0.6, since, until, device="eno0")
        for s in range(first, last, every):
            if text and s - run.first < len(run.seconds):
                name = run.hosts[int(run.rng.integers(len(run.hosts)))]
                moment = run.time_of(s) + 1.0
                log.say(moment, filled(run, text, name, moment), run.hosts.index(name))

    return show


@fault
def al_staircase_leak(run: Run, host: Hosts, at: Place, text: str, every: int = 25, limit_gb: float = 2145.0) -> Show:
    """One host keeps a copy of something each so many steps: its memory climbs in stairs until the kernel kills it."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 80.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 7.0
        rank, count = run.hosts.index(name), max(1, len(run.ends) // every)
        stair = (limit_gb * 1e9 - 204e9) / count
        for number in range(1, count + 1):
            since = float(run.ends[min(number * every, len(run.ends)) - 1])
            sheet.add("ray_node_mem_used", stair, since, dies, name, shape=ramp(since, 40.0))
        sheet.count("hw_oom_kills_total", 1.0, dies - 2.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies, filled(run, text, name, dies), rank)

    return show


@fault
def al_ambient(run: Run, degrees: float = 6.0) -> Show:
    """The hall warms in the afternoon and cools again: all GPUs with it, well below any limit; clocks stay."""

    def show(sheet: Sheet, log: JobLog) -> None:
        begin, long = run.steps_from, run.work_end - run.steps_from
        sheet.add(
            "hw_gpu_temperature_celsius",
            degrees,
            begin,
            run.work_end,
            shape=lambda t: np.clip(np.sin(np.pi * (t - begin) / max(long, 1.0)), 0.0, 1.0),
        )

    return show


@fault
def al_reset_card(run: Run, host: Hosts, gpu: int) -> Show:
    """A GPU that its driver resets in vain: no clock, idle power, errors in the kernel's log, slow scrapes."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since = only(host), str(gpu), run.work_end + 4.0
        sheet.put("hw_gpu_clock_mhz", 0.0, since, run.end, name, gpu=card)
        sheet.put("hw_gpu_power_watts", 0.6 * run.profile.idle_w, since, run.end, name, gpu=card)
        sheet.add("hw_dmesg_gpu_errors_total", 9.0, since, run.end, name)
        sheet.add("hw_scrape_duration_seconds", 5.5, since, run.end, name)

    return show
