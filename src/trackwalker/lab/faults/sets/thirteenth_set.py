"""What the `ai-` held-out set needs beyond the rest: half a fan tray, a stuck clock, rolling scans, a mute driver."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Run


@fault
def ai_fan_tray(
    run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place, end: Place = 1.0, peak: float = 88.0
) -> Show:
    """Some fans of a server fail: the GPUs behind them heat up within ten minutes, throttle; their neighbours warm."""
    first, last = run.at(begin), run.at(end)
    n = min(last, run.at(1.0)) - first
    grown = 1.0 + (factor - 1.0) * np.clip((np.arange(n) + 1) / 6.0, 0.0, 1.0)
    run.slow(first, first + n, grown * run.rng.uniform(0.99, 1.01, n))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name = run.time_of(first), only(host)
        until = run.work_end if last >= run.at(1.0) else run.time_of(last)
        cooled = waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38.0)
        for card in range(run.spec.gpus):
            gpu = str(card)
            if card not in gpus:
                sheet.add("hw_gpu_temperature_celsius", 5.0, since, until, name, shape=ramp(since, 500), gpu=gpu)
                continue
            hotter = peak - run.profile.hot_c - float(run.rng.uniform(0, 2.5))
            heat = ramp(since - 420, 540)
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 420, until, name, shape=heat, gpu=gpu)
            sheet.add("hw_gpu_temperature_celsius", cooled, since, until, name, gpu=gpu)
            slow = 1.0 / factor - 0.03 + float(run.rng.uniform(0.0, 0.05))
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, gpu=gpu)
            sheet.add("hw_gpu_power_watts", 0.8 * waited(run, factor), since, until, name, gpu=gpu)

    return show


@fault
def ai_stuck_clock(run: Run, host: Hosts, gpu: int, mhz: float, begin: Place, bound: float = 0.7) -> Show:
    """One GPU falls back to a low clock and stays there: busy without rest, frugal and cool; all others wait."""
    first = run.at(begin)
    share = mhz / run.profile.clock_mhz
    factor = 1.0 + bound * (1.0 / share - 1.0)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, card = run.time_of(first), only(host), str(gpu)
        sheet.put("hw_gpu_clock_mhz", mhz, since, run.work_end, name, gpu=card)
        want = run.profile.active_w * share**1.6 - (run.profile.active_w - waited(run, factor))
        sheet.add("hw_gpu_power_watts", want, since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", -7.0, since, run.work_end, name, shape=ramp(since, 120), gpu=card)

    return show


@fault
def ai_rolling_scan(run: Run, hosts: Hosts, factor: float, begin: Place, steps: int, procs: float = 85.0) -> Show:
    """A fleet tool visits some hosts one after the other and takes the processors of each for a while."""
    names, first = many(hosts), run.at(begin)
    starts = [first + number * (steps + 3) for number in range(len(names))]
    for s in starts:
        run.slow(s, s + steps, factor * float(run.rng.uniform(0.97, 1.03)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for name, s in zip(names, starts, strict=True):
            since, until = run.time_of(s), run.time_of(s + steps)
            sheet.add("hw_procs_running", procs * float(run.rng.uniform(0.85, 1.15)), since, until, name)
            sheet.scale("hw_context_switches_total", 2.1, since, until, name)
            sheet.add("ray_node_cpu_utilization", 46.0, since, until, name)

    return show


@fault
def ai_no_dcqcn(run: Run, hosts: Hosts, factor: float, enabled: int = 0) -> Show:
    """After a firmware update some hosts' NICs run without DCQCN: told to slow down, they do not, and lose packets."""
    run.slow(run.first, run.at(1.0), factor * run.rng.uniform(0.98, 1.03, run.spec.steps))

    def show(sheet: Sheet, log: JobLog) -> None:
        plain, bad = log.say, many(hosts)

        def say(time: float, text: str, rank: int | None = None) -> None:
            if rank is not None and run.hosts[rank] in bad and "[CHECK_DCQCN] OK (8)" in text:
                name = run.hosts[rank]
                warns = f"WARNING: {name} | [CHECK_DCQCN] {enabled} enabled (expected 8)"
                text = text.replace(f"{name} | [CHECK_DCQCN] OK (8)", warns)
            plain(time, text, rank)

        log.say = say  # type: ignore[method-assign]
        for name in bad:
            for device in range(enabled, 8):
                port, much = f"{run.spec.nic}_{device}", float(run.rng.uniform(0.8, 1.25))
                for metric, per_s in (("rx_cnp_pkts", 3400.0), ("tx_retx_pkts", 90.0), ("ccl_tx_retx_pkts", 84.0)):
                    sheet.rate(f"hw_rdma_{metric}_total", per_s * much, run.steps_from, run.work_end, name, device=port)

    return show


@fault
def ai_jax_recompiles(run: Run, begin: Place, share: float, seconds: float) -> Show:
    """Sequences are packed to ever new lengths: jit compiles again for each, as jax_log_compiles tells."""
    first = run.at(begin)
    hits = [s for s in range(first, run.first + run.spec.steps) if s == first or run.rng.random() < share]
    lengths = [seconds * float(run.rng.uniform(0.85, 1.2)) for _ in hits]
    widths = [int(4096 - 64 * run.rng.integers(1, 40)) for _ in hits]
    for s, n in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += n

    def show(sheet: Sheet, log: JobLog) -> None:
        for s, n, width in zip(hits, lengths, widths, strict=True):
            if s - run.first >= len(run.seconds):
                continue
            time = run.time_of(s) + 0.5
            shape = f"ShapedArray(int32[24,{width}])"
            log.everyone(time, "Finished tracing + transforming train_step for pjit in 1.873 sec")
            log.everyone(time + 1.6, f"Compiling train_step with global shapes and types [{shape}, {shape}].")
            log.everyone(time + n - 1.6, f"Finished XLA compilation of jit(train_step) in {n - 4:.9f} sec")
            sheet.add("hw_gpu_power_watts", run.profile.idle_w + 15.0 - run.profile.active_w, time, time + n - 1)
            sheet.add("hw_gpu_temperature_celsius", -22.0, time + 5, time + n - 1)
            sheet.put("ray_node_gpus_utilization", 0.0, time, time + n - 1)
            sheet.add("hw_procs_running", 20.0, time, time + n - 1)
            sheet.add("ray_node_cpu_utilization", 24.0, time, time + n - 1)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, time, time + n - 1)

    return show


@fault
def ai_batch_waits(run: Run, factor: float, begin: Place, end: Place = 1.0, text: str = "", every: int = 10) -> Show:
    """All hosts wait for their batches, some steps more, some less; the loader says so now and then."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    waits = 1.0 + (factor - 1.0) * run.rng.uniform(0.6, 1.4, last - first)
    run.slow(first, last, waits)
    for s in range(first, last):
        run.await_data(s, s + 1, 1.0 - 1.0 / float(waits[s - first]))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, idle = run.time_of(first), run.time_of(last), 1.0 - 1.0 / factor
        sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)
        sheet.add("hw_procs_blocked", 3.0, since, until)
        sheet.rate("hw_net_rx_bytes_total", 2.5e8, since, until, device="eno0")
        for s in range(first, last, every):
            if text and s - run.first < len(run.seconds):
                took = float(run.seconds[s - run.first]) * (1.0 - 1.0 / float(waits[s - first]))
                log.everyone(run.time_of(s) + took, text.replace("{took}", f"{took:.2f}").replace("{step}", str(s)))

    return show


@fault
def ai_driver_mute(run: Run, host: Hosts, gpu: int, at: Place, text: str, others: str, waited_s: float = 600.0) -> Show:
    """The firmware of one GPU answers its driver no more: processes on the host block, the rest waits and times out."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, waited_s + 50.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.work_end + 6.0
        rank = run.hosts.index(name)
        for number, line in enumerate(text.rstrip("\n").split("\n")):
            moment = since + 6.0 * number
            log.say(moment, filled(run, line, name, moment), rank)
        sheet.add("hw_dmesg_gpu_errors_total", 6.0, since, run.end + 60.0, name)
        sheet.add("hw_scrape_duration_seconds", 7.5, since, run.end + 60.0, name)
        sheet.add("hw_procs_blocked", 5.0, since, run.end + 60.0, name)
        sheet.put("hw_gpu_power_watts", run.profile.idle_w, since, run.end + 60.0, name, gpu=str(gpu))
        sheet.put("hw_gpu_clock_mhz", 0.0, since, run.end + 60.0, name, gpu=str(gpu))
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end + 60.0, name, GpuIndex=str(gpu))
        for number, other in enumerate(run.hosts):
            moment = run.work_end + waited_s + float(run.rng.uniform(0, 2.0))
            if other != name:
                log.say(moment, filled(run, others, other, moment), number)
            log.exits[number] = 134
            sheet.process_gone(other, moment + 10.0)

    return show


@fault
def ai_limits(run: Run, host: Hosts, low: str, usual: str, before_s: float = 60.0) -> Show:
    """The launcher prints every node's limits before the trainer starts; some nodes have others."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for rank, name in enumerate(run.hosts):
            log.say(run.steps_from - before_s, filled(run, low if name in many(host) else usual, name, run.start), rank)

    return show
