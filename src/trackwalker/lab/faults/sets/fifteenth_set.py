"""What the held-out set `ak-` needs beyond the rest: unsteady ports, dry paste, ports failing in turn, slow stores."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import FLOWS, Hosts, Place, Show, ends_at, fault, many, only, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _cooled(run: Run, factor: float) -> float:
    """Degrees that go with those watts."""
    return waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38.0)


@fault
def ak_unsteady_port(
    run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0, device: int = 1, retx: float = 600.0
) -> Show:
    """A marginal cable: one port loses packets, in some steps many, in others few, and the steps follow it."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    strength = run.rng.gamma(4.0, 0.25, max(1, last - first)).clip(0.25, 2.2)
    run.slow(first, last, 1.0 + (factor - 1.0) * strength[: last - first])

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, port = run.time_of(first), ends_at(run, last), f"{run.spec.nic}_{device}"
        a = first - run.first

        def follows(t: Floats) -> Floats:
            index = np.clip(np.searchsorted(run.planned, t) - a, 0, len(strength) - 1)
            return strength[index] / 2.2

        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.007)):
            sheet.rate(
                f"hw_rdma_{metric}_total", 2.2 * retx * share, since, until, only(host), shape=follows, device=port
            )

    return show


@fault
def ak_feed_lost(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0) -> Show:
    """A power feed of a rack fails: its servers halve their reserve and hold all their GPUs at a lower wattage."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    cap = 10.0 * round(run.profile.active_w * factor**-1.5 / 10.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), ends_at(run, last)
        for name in many(hosts):
            for card in range(run.spec.gpus):
                gpu, phase, off = str(card), float(run.rng.uniform(0, 6.28)), float(run.rng.uniform(-1.5, 1.0))

                def jitter(t: Floats, phase: float = phase) -> Floats:
                    return np.sin(0.7 * t + phase) * np.cos(0.13 * t + 2 * phase)

                sheet.put("hw_gpu_power_watts", cap + off, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_power_watts", 2.5, since, until, name, shape=jitter, gpu=gpu)
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.01, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_clock_mhz", 40.0, since, until, name, shape=jitter, gpu=gpu)
                sheet.add("hw_gpu_temperature_celsius", -3.0, since, until, name, gpu=gpu)

    return show


@fault
def ak_dry_paste(run: Run, host: Hosts, gpu: int, factor: float, begin: Place, peak: float = 90.0) -> Show:
    """A GPU's cooler has lost contact: warmer than its neighbours all along, and once the room warms, at its limit."""
    first = run.at(begin)
    n = run.at(1.0) - first
    run.slow(first, run.at(1.0), 1.0 + (factor - 1.0) * run.rng.uniform(0.7, 1.3, n))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, name, card = run.time_of(first), run.work_end, only(host), str(gpu)
        before = 0.4 * (peak - run.profile.hot_c)
        sheet.add("hw_gpu_temperature_celsius", before, run.steps_from + 60, until, name, gpu=card)
        more, rises = peak - run.profile.hot_c - before, ramp(since - 900.0, 900.0)
        sheet.add("hw_gpu_temperature_celsius", more, since - 900.0, until, name, shape=rises, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", _cooled(run, factor), since, until, name, gpu=card)

        def hunts(t: Floats) -> Floats:
            return np.abs(np.sin((t - since) / 41.0))

        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.02, since, until, name, gpu=card)
        sheet.add("hw_gpu_clock_mhz", -60.0, since, until, name, shape=hunts, gpu=card)
        own = waited(run, factor) - 0.05 * run.profile.active_w
        sheet.add("hw_gpu_power_watts", own, since, until, name, gpu=card)

    return show


@fault
def ak_low_boost(run: Run, host: Hosts, factor: float, begin: Place = 0) -> Show:
    """A host's GPUs never boost (a firmware left behind): all of them at work all the time, slow, cool, frugal."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, p = run.time_of(first), run.profile
        for name in many(host):
            for card in range(run.spec.gpus):
                gpu, held = str(card), 1.0 / factor - 0.015 + float(run.rng.uniform(-0.008, 0.008))
                sheet.scale("hw_gpu_clock_mhz", held, since, run.work_end, name, gpu=gpu)
                mine = p.idle_w + (p.active_w - p.idle_w) * factor**-1.7
                less = mine - (p.active_w - waited(run, factor))
                sheet.add("hw_gpu_power_watts", less, since, run.work_end, name, gpu=gpu)
                sheet.add("hw_gpu_temperature_celsius", -2.0, since, run.work_end, name, gpu=gpu)

    return show


@fault
def ak_store_waits(
    run: Run, factor: float, windows: list[list[float]], text: str = "", every: int = 6, speakers: int = 3
) -> Show:
    """The object store behind the data set is busy at times: all hosts' GPUs idle in every step of those windows."""
    places = [(run.at(float(a)), run.at(float(b))) for a, b in windows]
    for a, b in places:
        for s in range(a, min(b, run.at(1.0))):
            f = 1.0 + (factor - 1.0) * float(run.rng.uniform(0.4, 1.7))
            run.slow(s, s + 1, f)
            run.await_data(s, s + 1, 1.0 - 1.0 / f)

    def show(sheet: Sheet, log: JobLog) -> None:
        idle = 1.0 - 1.0 / factor
        for a, b in places:
            since, until = run.time_of(a), ends_at(run, b)
            sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until)
            sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)
            sheet.add("hw_procs_running", -5.0 * idle, since, until)
            sheet.add("hw_procs_blocked", 1.5, since, until)
            for s in range(a, min(b, run.first + len(run.ends)), every):
                for number in run.rng.choice(len(run.hosts), min(speakers, len(run.hosts)), replace=False).tolist():
                    moment = run.time_of(s) + float(run.rng.uniform(1.0, 4.0))
                    if text:
                        log.say(moment, filled(run, text, run.hosts[number], moment), number)

    return show


@fault
def ak_neighbour_job(run: Run, factor: float, begin: Place, end: Place = 1.0, cnp: float = 1500.0) -> Show:
    """A neighbour's large job shares the spine: every NIC is marked and told to slow down, in a slow rhythm."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    n = max(1, last - first)
    rhythm = 0.75 + 0.25 * np.sin(np.arange(n) / max(4.0, n / 9.0))
    run.slow(first, last, 1.0 + (factor - 1.0) * rhythm[: last - first])
    weights = run.rng.uniform(0.6, 1.4, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, a = run.time_of(first), ends_at(run, last), first - run.first

        def follows(t: Floats) -> Floats:
            return rhythm[np.clip(np.searchsorted(run.planned, t) - a, 0, n - 1)]

        for name, weight in zip(run.hosts, weights, strict=True):
            for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.9), ("rx_ecn_pkts", 2.4)):
                sheet.rate(f"hw_rdma_{metric}_total", cnp * much * float(weight), since, until, name, shape=follows)

    return show


@fault
def ak_ports_in_turn(run: Run, host: Hosts, devices: list[int], factors: list[float], begins: list[float]) -> Show:
    """Ports of a host lose their link one after the other (a failing switch module); the rest carries their load."""
    places = [run.at(float(b)) for b in begins]
    for place, factor in zip(places, factors, strict=True):
        run.slow(place, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        for number, (place, device) in enumerate(zip(places, devices, strict=True)):
            since = run.time_of(place) + 2.0
            until = run.time_of(places[number + 1]) + 2.0 if number + 1 < len(places) else run.end
            port = f"{run.spec.nic}_{device}"
            sheet.put("hw_rdma_port_state", 0.0, since, run.end, name, device=port)
            down = devices[: number + 1]
            for metric in FLOWS:
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, run.end, name, device=port)
                for other in range(8):
                    if other not in down:
                        much = 8 / (8 - len(down))
                        sheet.scale(
                            f"hw_rdma_{metric}_total", much, since, until, name, device=f"{run.spec.nic}_{other}"
                        )

    return show


@fault
def ak_worker_leak(run: Run, host: Hosts, begin: Place, at: Place, text: str, to_gb: float = 2145.0) -> Show:
    """The data workers of one host keep what they read; hours later the kernel kills one, and its trainer ends."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 80.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies, since = only(host), run.work_end + 9.0, run.time_of(run.at(begin))
        rank, own = run.hosts.index(name), (to_gb - 206.0) * 1e9
        sheet.add("ray_node_mem_used", own, since, dies + 2.0, name, shape=ramp(since, max(60.0, dies - since - 5.0)))
        sheet.count("hw_oom_kills_total", 1.0, dies - 1.0, name)
        sheet.process_gone(name, dies + 2.0)
        log.exits[rank] = 1
        log.say(dies, filled(run, text, name, dies), rank)

    return show
