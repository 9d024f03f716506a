"""What the held-out set `ao-` needs beyond the rest: warm optics, coolant waves, stairs of caps, piles of forks."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, fault, many, only, port_dark, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


@fault
def ao_warm_optic(
    run: Run, host: Hosts, factor: float, waves: float = 2.5, begin: Place = 0, device: int = 5, retx: float = 1100.0
) -> Show:
    """A transceiver at the edge of its budget loses frames whenever the aisle is warm, none when it is cool."""
    first, n = run.at(begin) - run.first, run.spec.steps
    index = np.arange(n)
    phase = np.sin(2 * np.pi * waves * np.clip((index - first) / max(1, n - first), 0, 1) - 0.6)
    strength = np.where(index >= first, np.clip(phase, 0.0, 1.0), 0.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        port, shape = f"{run.spec.nic}_{device}", by_step(run, strength)
        for metric, part in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.94), ("tx_ack_timeout", 0.004)):
            name = f"hw_rdma_{metric}_total"
            sheet.rate(name, retx * part, run.steps_from, run.work_end, only(host), shape=shape, device=port)

    return show


@fault
def ao_coolant(run: Run, hosts: Hosts, factor: float, begin: Place, waves: int = 4, peak: float = 88.0) -> Show:
    """The loop of one rack loses flow in waves: its GPUs reach their limit together and give up clock."""
    first, n = run.at(begin) - run.first, run.spec.steps
    index = np.arange(n)
    phase = np.sin(np.pi * (0.5 + 2 * waves * np.clip((index - first) / max(1, n - first), 0, 1)) - 0.5 * np.pi)
    strength = np.where(index >= first, np.clip(0.35 + 0.65 * phase, 0.0, 1.0), 0.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, held = run.profile, by_step(run, strength)
        heat = ramp(run.time_of(run.at(begin)) - 200.0, 300.0)
        back = waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, mine = str(gpu), float(run.rng.uniform(-3.0, 1.5))
                since, until = run.time_of(run.at(begin)) - 200.0, run.work_end

                def warm(t: Floats) -> Floats:
                    return heat(t) * (0.55 + 0.45 * held(t))

                sheet.add("hw_gpu_temperature_celsius", peak - p.hot_c + mine, since, until, name, shape=warm, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", back, since, until, name, shape=held, gpu=card)
                slow = 1.0 / factor - float(run.rng.uniform(0.0, 0.03))
                sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, shape=held, gpu=card)
                more = waited(run, factor) - 0.1 * p.active_w
                sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def ao_cap_stairs(run: Run, shares: list[float], begins: list[float], back: Place = 1.0) -> Show:
    """The site lowers the power limit of all GPUs step by step (a feeder at its limit) and lifts it at the end."""
    places = [*(run.at(float(b)) for b in begins), run.at(back)]
    factors = [1.0 / (share**0.62) for share in shares]
    for a, b, f in zip(places, places[1:], factors, strict=False):
        run.slow(a, b, f)

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b, f, share in zip(places, places[1:], factors, shares, strict=False):
            since = run.time_of(a)
            until = run.work_end if b >= run.at(1.0) else run.time_of(b)
            cap = 5.0 * round(share * run.profile.active_w / 5.0)
            for host in run.hosts:
                for gpu in range(run.spec.gpus):
                    phase = float(run.rng.uniform(0, 6.28))

                    def hum(t: Floats, phase: float = phase) -> Floats:
                        return np.sin(1.7 * t + phase)

                    sheet.put("hw_gpu_power_watts", cap, since, until, host, gpu=str(gpu))
                    sheet.add("hw_gpu_power_watts", 2.0, since, until, host, shape=hum, gpu=str(gpu))
            sheet.scale("hw_gpu_clock_mhz", 1.0 / f, since, until)
            sheet.add("hw_gpu_temperature_celsius", -5.0, since, until)

    return show


@fault
def ao_stream_limited(run: Run, factor: float, begin: Place, end: Place = 1.0, text: str = "", every: int = 10) -> Show:
    """The prefetch buffer is empty and the object store delivers less than a step eats: every GPU idles each step."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    much = 1.0 + (factor - 1.0) * run.rng.uniform(0.75, 1.25, max(1, last - first))
    run.slow(first, last, much)
    for s, f in zip(range(first, last), much.tolist(), strict=True):
        run.await_data(s, s + 1, 1.0 - 1.0 / f)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        until = run.work_end if last >= run.at(1.0) else run.time_of(last)
        idle = 1.0 - 1.0 / factor
        sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)
        sheet.rate("hw_net_rx_bytes_total", 1.2e8, run.steps_from, since, device="eno0")
        sheet.rate("hw_net_rx_bytes_total", 1.2e8 / factor, since, until, device="eno0")
        for s in range(first, last, every) if text else []:
            if s - run.first < len(run.ends):
                f = float(run.factor[s - run.first])
                waited = (1.0 - 1.0 / f) * float(run.seconds[s - run.first])
                moment = run.time_of(s + 1) - 0.2
                log.say(moment, filled(run, text.replace("{waited}", f"{waited:.1f}"), run.hosts[0], moment), 0)

    return show


@fault
def ao_fork_pile(run: Run, host: Hosts, factor: float, begin: Place, every: int, most: float = 130.0) -> Show:
    """A health check that never ends is started each minute; the pile takes the CPUs until a restart clears it."""
    first, n = run.at(begin) - run.first, run.spec.steps
    index = np.arange(n)
    pile = np.where(index >= first, ((index - first) % every + 1) / every, 0.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * np.clip(1.35 * pile - 0.35, 0.0, 1.0))

    def show(sheet: Sheet, log: JobLog) -> None:
        shape = by_step(run, pile)
        since, name = run.time_of(run.at(begin)), only(host)
        sheet.add("hw_procs_running", most, since, run.work_end, name, shape=shape)
        sheet.add("ray_node_cpu_utilization", 62.0, since, run.work_end, name, shape=shape)
        sheet.scale("hw_context_switches_total", 2.6, since, run.work_end, name, shape=shape)

    return show


@fault
def ao_spine_lost(run: Run, factor: float, begin: Place, cnp: float = 3000.0, retx: float = 3.0) -> Show:
    """A spine switch is out: the others carry its flows, all NICs are marked, a few packets are lost everywhere."""
    first = run.at(begin)
    n = max(0, run.at(1.0) - first)
    run.slow(first, run.at(1.0), factor * run.rng.uniform(0.98, 1.02, n))
    weights = run.rng.uniform(0.75, 1.3, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for host, weight in zip(run.hosts, weights.tolist(), strict=True):
            for metric, part in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.93), ("rx_ecn_pkts", 2.4)):
                sheet.rate(f"hw_rdma_{metric}_total", cnp * part * weight, since, run.work_end, host)
            if retx:
                sheet.rate("hw_rdma_tx_retx_pkts_total", retx * weight, since, run.work_end, host)

    return show


@fault
def ao_port_returns(
    run: Run, host: Hosts, factor: float, windows: list[list[float]], device: int = 6, text: str = ""
) -> Show:
    """A port loses its link for long stretches (a hot module) and comes back; its siblings carry the rest."""
    places = [(run.at(float(a)), run.at(float(b))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port = only(host), f"{run.spec.nic}_{device}"
        for a, b in places:
            since = run.time_of(a)
            until = run.end if b >= run.at(1.0) else run.time_of(b)
            port_dark(run, sheet, name, device, since, until)
            if text:
                log.say(
                    since + 2.0, filled(run, text.replace("{port}", port), name, since + 2.0), run.hosts.index(name)
                )

    return show


@fault
def ao_workers_swell(run: Run, host: Hosts, at: Place, text: str, over_s: float = 900.0, to_gb: float = 2140.0) -> Show:
    """The loader workers of one host copy a far larger shard, each for itself, until the kernel kills one."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 75.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 9.0
        rank, since = run.hosts.index(name), dies - over_s
        grows = ramp(since, over_s)
        sheet.add("ray_node_mem_used", to_gb * 1e9 - 206e9, since, dies + 1.0, name, shape=lambda t: grows(t) ** 0.8)
        sheet.count("hw_oom_kills_total", 1.0, dies - 3.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies + 1.0, filled(run, text, name, dies + 1.0), rank)

    return show


@fault
def ao_port_dies(run: Run, host: Hosts, device: int) -> Show:
    """A port loses its link after the last step; the retries of its queue pairs run out."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.work_end + 2.0
        sheet.put("hw_rdma_port_state", 0.0, since, run.end + 60.0, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 6.0, since, since + 22.0, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 8.0, since + 16.0, name, device=port)

    return show


@fault
def ao_slow_card(run: Run, host: Hosts, gpu: int, mhz: float, factor: float, begin: Place = 0) -> Show:
    """One GPU holds a low clock after a driver event: cool, flat, busy all the time while the others wait for it."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, card, since = run.profile, only(host), str(gpu), run.time_of(first)
        lost = 1.0 - 1.0 / run.factor[: max(1, len(run.ends))]
        mine = p.idle_w + (p.active_w - p.idle_w) * (mhz / p.clock_mhz) ** 1.8
        sheet.put("hw_gpu_clock_mhz", mhz, since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_power_watts", mine - p.active_w, since, run.work_end, name, gpu=card)
        sheet.add(
            "hw_gpu_power_watts", p.active_w - p.spin_w, since, run.work_end, name, shape=by_step(run, lost), gpu=card
        )

    return show
