"""What another author's held-out set (`ah-`) needs beyond the rest: pumps, limits that come and go, timers."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Shape, Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _sway(period_s: float, phase: float) -> Shape:
    def shape(t: Floats) -> Floats:
        return np.sin(2 * np.pi * t / period_s + phase)

    return shape


@fault
def ah_demand_response(run: Run, factor: float, begin: Place, end: Place, share: float = 0.8) -> Show:
    """The site sheds load for a while: every GPU gets a lower power limit, computes on below it, and is let go."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        limit = 5.0 * round(share * run.profile.active_w / 5.0)
        for name in run.hosts:
            for card in range(run.spec.gpus):
                gpu, phase = str(card), float(run.rng.uniform(0, 6.28))
                sheet.put("hw_gpu_power_watts", limit, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_power_watts", 2.0, since, until, name, shape=_sway(37.0, phase), gpu=gpu)
                held = 1.0 / factor + float(run.rng.uniform(-0.012, 0.012))
                sheet.scale("hw_gpu_clock_mhz", held, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_temperature_celsius", -3.0, since, until, name, gpu=gpu)

    return show


@fault
def ah_pump(run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0, peak: float = 92.0) -> Show:
    """The pump of a host's cold plates weakens: all its GPUs sit at their limit, clocks hunt up and down below it."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, p = run.time_of(first), run.time_of(last), run.profile
        cooled = waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
        for name in many(host):
            for card in range(run.spec.gpus):
                gpu, phase = str(card), float(run.rng.uniform(0, 6.28))
                hotter = peak - p.hot_c + cooled - float(run.rng.uniform(0, 2.5))
                heat = ramp(since - 420.0, 400.0)
                sheet.add("hw_gpu_temperature_celsius", hotter, since - 420.0, until, name, shape=heat, gpu=gpu)
                held = 1.0 / factor - 0.03 + float(run.rng.uniform(0, 0.04))
                sheet.scale("hw_gpu_clock_mhz", held, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_clock_mhz", 70.0, since, until, name, shape=_sway(95.0, phase), gpu=gpu)
                more = waited(run, factor) - 0.08 * p.active_w
                sheet.add("hw_gpu_power_watts", more, since, until, name, gpu=gpu)

    return show


@fault
def ah_stuck_card(run: Run, host: Hosts, gpu: int, factor: float, begin: Place) -> Show:
    """One GPU falls to a low performance state and stays there: low clock, cool, frugal, at work all the time."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, card, p = run.time_of(first), only(host), str(gpu), run.profile
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.03, since, run.work_end, name, gpu=card)
        own = p.idle_w + (p.active_w - p.idle_w) * factor**-1.8
        sheet.add("hw_gpu_power_watts", own - (p.active_w - waited(run, factor)), since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", -2.0, since, run.work_end, name, gpu=card)

    return show


@fault
def ah_spine_fills(run: Run, factor: float, begin: Place, over: float = 0.4, cnp: float = 700.0) -> Show:
    """More and more other jobs share the spine: marks and notifications grow on all NICs, and the steps with them."""
    first, n = run.at(begin), run.spec.steps
    index = np.arange(n) + run.first
    grown = np.clip((index - first + 1) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, np.where(index >= first, 1.0 + (factor - 1.0) * grown, 1.0))
    weights = run.rng.uniform(0.7, 1.3, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        length = max(120.0, run.time_of(min(run.at(1.0), first + round(over * n))) - since)
        for host, weight in zip(run.hosts, weights, strict=True):
            for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.96), ("rx_ecn_pkts", 2.5)):
                rate = cnp * much * float(weight)
                sheet.rate(f"hw_rdma_{metric}_total", rate, since, run.work_end, host, shape=ramp(since, length))

    return show


@fault
def ah_host_nics(run: Run, host: Hosts, factor: float, retx: float = 160.0, begin: Place = 0) -> Show:
    """All NICs of a host lose packets (a broken adapter board or its switch side), each at its own rate."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for name in many(host):
            for device in range(8):
                mine, port = retx * float(run.rng.uniform(0.5, 1.5)), f"{run.spec.nic}_{device}"
                for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.94), ("tx_ack_timeout", 0.006)):
                    sheet.rate(f"hw_rdma_{metric}_total", mine * share, since, run.work_end, name, device=port)

    return show


@fault
def ah_batch_timer(run: Run, factor: float, begin: Place, every: int = 10) -> Show:
    """Documents are tokenized while training and the workers cannot keep up: GPUs idle, Megatron's timers say where."""
    first, last = run.at(begin), run.at(1.0)
    run.slow(first, last, factor)
    run.await_data(first, last, 1.0 - 1.0 / factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, idle = run.time_of(first), 1.0 - 1.0 / factor
        sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, run.work_end)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, run.work_end)
        sheet.add("hw_procs_running", 5.0, since, run.work_end)
        sheet.add("ray_node_cpu_utilization", 6.0, since, run.work_end)
        teller = len(run.hosts) - 1  # Megatron's last rank prints
        for i in range(every - 1, len(run.ends), every):
            late = run.first + i >= first
            waits = 1000.0 * (idle * float(run.seconds[i]) if late else float(run.rng.uniform(0.04, 0.09)))
            work = 1000.0 * float(run.seconds[i]) - (waits if late else 0.0)
            log.say(
                float(run.ends[i]) + 0.5,
                "(min, max) time across ranks (ms):\n"
                f"    forward-backward ...............................: ({0.955 * work:.2f}, {0.962 * work:.2f})\n"
                f"    batch-generator ................................: ({0.93 * waits:.2f}, {1.01 * waits:.2f})\n"
                f"    all-grads-sync .................................: ({0.012 * work:.2f}, {0.02 * work:.2f})\n"
                f"    optimizer ......................................: ({0.009 * work:.2f}, {0.01 * work:.2f})",
                teller,
            )

    return show


@fault
def ah_mount_stuck(run: Run, hosts: Hosts, at: Place, silent_s: float, blocked: float = 28.0) -> Show:
    """The user-space mount of the data set answers no more on some hosts: readers sleep, GPUs there have no work."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, p = run.work_end + 3.0, run.profile
        for name in many(hosts):
            sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
            sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
            sheet.scale("hw_gpu_clock_mhz", 0.1, since, run.end, name)
            sheet.add("hw_procs_running", -9.0, since, run.end, name)
            sheet.add("hw_procs_blocked", blocked, since, run.end, name)

    return show


@fault
def ah_card_error(run: Run, host: Hosts, gpu: int, at: Place, text: str, others: str, wait_s: float = 95.0) -> Show:
    """A GPU's memory returns uncorrectable data: its rank ends at once, the rest when their watchdogs notice."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, wait_s + 30.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, fails = only(host), run.work_end + 7.0
        guilty = run.hosts.index(name)
        sheet.count("hw_gpu_ras_umc_ue_total", 1.0, fails - 1.0, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", 2.0, fails - 1.0, run.end + 60.0, name)
        sheet.process_gone(name, fails)
        said = text.replace("{gpu}", str(gpu)).replace("{cardrank}", str(guilty * run.spec.gpus + gpu))
        log.say(fails, filled(run, said, name, fails), guilty)
        log.exits[guilty] = 1
        for rank, other in enumerate(run.hosts):
            if rank != guilty:
                moment = fails + wait_s + float(run.rng.uniform(0, 2.0))
                log.say(moment, filled(run, others, other, moment), rank)
                log.exits[rank] = 134
                sheet.process_gone(other, moment + 4.0)

    return show
