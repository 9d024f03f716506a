"""What the held-out set `an-` needs beyond the rest: ageing lasers, coolant loops, leftover limits, lost targets."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import FLOWS, Hosts, Place, Show, fault, many, only, port_dark, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Shape, Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _uncooled(run: Run, factor: float) -> float:
    """Degrees that go with those watts."""
    p = run.profile
    return waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)


def _stepwise(run: Run, strength: Floats) -> Shape:
    """A strength per step as a function of time."""
    known = strength[: max(1, len(run.ends))]
    return lambda t: known[np.clip(np.searchsorted(run.ends, t), 0, len(known) - 1)]


@fault
def an_ageing_lasers(
    run: Run, hosts: Hosts, devices: list[int], factors: list[float], begins: list[float], retx: float = 700.0
) -> Show:
    """Transceivers of one batch wear out: each at its own time loses a little, then more, and never recovers."""
    n, strengths = run.spec.steps, []
    for factor, begin in zip(factors, begins, strict=True):
        first = run.at(float(begin)) - run.first
        grown = np.clip((np.arange(n) - first + 4.0) / max(6.0, 0.12 * n), 0.0, 1.0) * (np.arange(n) >= first)
        strengths.append(grown)
        run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * grown)

    def show(sheet: Sheet, log: JobLog) -> None:
        for name, device, grown in zip(many(hosts), devices, strengths, strict=True):
            port, shape = f"{run.spec.nic}_{device}", _stepwise(run, grown)
            much = retx * float(run.rng.uniform(0.8, 1.3))
            for metric, part in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.96), ("tx_ack_timeout", 0.006)):
                per_s = much * part
                sheet.rate(
                    f"hw_rdma_{metric}_total", per_s, run.steps_from, run.work_end, name, shape=shape, device=port
                )

    return show


@fault
def an_incast(run: Run, factor: float, begin: Place, end: Place, every: int, steps: int, cnp: float = 3000.0) -> Show:
    """A neighbour's bulk transfers cross the same spine in bursts: all NICs get notifications for some steps, again."""
    starts = list(range(run.at(begin), min(run.at(end), run.at(1.0)) - steps, every))
    long = [steps + int(run.rng.integers(-1, 3)) for _ in starts]
    for s, m in zip(starts, long, strict=True):
        run.slow(s, s + m, 1.0 + (factor - 1.0) * float(run.rng.uniform(0.8, 1.15)))
    weights = run.rng.uniform(0.7, 1.35, len(run.hosts)).tolist()

    def show(sheet: Sheet, log: JobLog) -> None:
        for s, m in zip(starts, long, strict=True):
            since, until = run.time_of(s), run.time_of(s + m)
            for name, weight in zip(run.hosts, weights, strict=True):
                for metric, part in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.92), ("rx_ecn_pkts", 2.4)):
                    sheet.rate(f"hw_rdma_{metric}_total", cnp * part * weight, since, until, name)

    return show


@fault
def an_coolant_loop(
    run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, over_s: float = 1500.0, peak: float = 89.0
) -> Show:
    """The coolant of one rack's loop runs short: all GPUs of its servers warm together and clock down at the limit."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    ramped = np.clip((np.arange(max(0, last - first)) + 1.0) * run.spec.step_s / over_s, 0.0, 1.0)
    run.slow(first, last, 1.0 + (factor - 1.0) * ramped)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.work_end if last >= run.at(1.0) else run.time_of(last)
        held = ramp(since, over_s)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, off = str(gpu), float(run.rng.uniform(-2.5, 1.0))
                more = peak + off - run.profile.hot_c
                sheet.add(
                    "hw_gpu_temperature_celsius", more, since - 900, until, name, shape=ramp(since - 900, 960), gpu=card
                )
                sheet.add(
                    "hw_gpu_temperature_celsius", _uncooled(run, factor), since, until, name, shape=held, gpu=card
                )
                slower = 1.0 / factor - 0.01 - 0.006 * off
                sheet.scale("hw_gpu_clock_mhz", slower, since, until, name, shape=held, gpu=card)
                watts = waited(run, factor) - 0.1 * run.profile.active_w
                sheet.add("hw_gpu_power_watts", watts, since, until, name, shape=held, gpu=card)

    return show


@fault
def an_leftover_cap(run: Run, hosts: Hosts, factor: float, cap_w: float, begin: Place = 0) -> Show:
    """Somebody lowered the board limit of a server for a test and left it: power stands at the limit, clocks waver."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, phase = str(gpu), float(run.rng.uniform(0, 6.28))

                def waver(t: Floats, phase: float = phase) -> Floats:
                    return np.sin(0.7 * t + phase)

                sheet.put("hw_gpu_power_watts", cap_w, since, run.work_end, name, gpu=card)
                sheet.add("hw_gpu_power_watts", 1.5, since, run.work_end, name, shape=waver, gpu=card)
                slower = 1.0 / factor - 0.02 + float(run.rng.uniform(-0.015, 0.015))
                sheet.scale("hw_gpu_clock_mhz", slower, since, run.work_end, name, gpu=card)
                sheet.add("hw_gpu_clock_mhz", 25.0, since, run.work_end, name, shape=waver, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", -3.0, since, run.work_end, name, gpu=card)

    return show


@fault
def an_fallen_clock(run: Run, host: Hosts, gpu: int, mhz: float, begin: Place, bound: float = 0.75) -> Show:
    """One GPU drops to a lower clock in the middle of the run and keeps it: cool, frugal, busy; nothing is logged."""
    p, first = run.profile, run.at(begin)
    factor = 1.0 + bound * (p.clock_mhz / mhz - 1.0)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since = only(host), str(gpu), run.time_of(first)
        sheet.add("hw_gpu_clock_mhz", mhz - p.clock_mhz, since, run.work_end, name, gpu=card)
        mine = p.idle_w + (p.active_w - p.idle_w) * (mhz / p.clock_mhz) ** 1.9
        watts = mine - (p.active_w - waited(run, factor))
        sheet.add("hw_gpu_power_watts", watts, since, run.work_end, name, gpu=card)
        degrees = watts / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
        sheet.add("hw_gpu_temperature_celsius", degrees, since, run.work_end, name, shape=ramp(since, 90), gpu=card)

    return show


@fault
def an_backup_windows(run: Run, hosts: Hosts, factor: float, windows: list[list[float]], procs: float = 72.0) -> Show:
    """Compressing backups run on some nodes in some windows: many runnable processes; all others wait for them."""
    places = [(run.at(float(a)), min(run.at(float(b)), run.at(1.0))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor * run.rng.uniform(0.97, 1.03, max(0, b - a)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b in places:
            since, until = run.time_of(a), run.time_of(b)
            for name in many(hosts):
                sheet.add("hw_procs_running", procs * float(run.rng.uniform(0.85, 1.2)), since, until, name)
                sheet.scale("hw_context_switches_total", 2.3, since, until, name)
                sheet.add("ray_node_cpu_utilization", 43.0, since, until, name)

    return show


@fault
def an_mixture_switch(run: Run, factor: float, begin: Place, text: str, every: int = 12) -> Show:
    """The mixture turns to a source that costs more to read and decode: all hosts wait for batches from then on."""
    first, last = run.at(begin), run.at(1.0)
    waits = 1.0 + (factor - 1.0) * run.rng.uniform(0.55, 1.45, last - first)
    run.slow(first, last, waits)
    for s in range(first, last):
        run.await_data(s, s + 1, 1.0 - 1.0 / float(waits[s - first]))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, idle = run.time_of(first), run.work_end, 1.0 - 1.0 / factor
        sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)
        sheet.add("ray_node_cpu_utilization", 28.0, since, until)
        sheet.rate("hw_net_rx_bytes_total", 4e8, since, until, device="eno0")
        for s in range(first, last, every):
            if s - run.first < len(run.seconds):
                took = float(run.seconds[s - run.first]) * (1.0 - 1.0 / float(waits[s - first]))
                for rank, name in enumerate(run.hosts):
                    if rank % 4 == 0:
                        moment = run.time_of(s) + took
                        said = text.replace("{took}", f"{took:.1f}").replace("{at}", str(s))
                        log.say(moment, filled(run, said, name, moment), rank)

    return show


@fault
def an_sick_target(run: Run, growth: list[float], text: str, after: int = 3) -> Show:
    """One storage target of the file system limps: saves take longer from some save on, clients complain on writers."""
    run.save_growth = np.array(growth, dtype=float)

    def show(sheet: Sheet, log: JobLog) -> None:
        for number, (since, until, _) in enumerate(run.saves, 1):
            if number < after:
                continue
            for name in run.writers:
                sheet.add("hw_io_pressure_full_pct", 22.0, since, until, name)
                sheet.add("hw_io_pressure_some_pct", 24.0, since, until, name)
                sheet.add("hw_procs_blocked", 9.0, since, until, name)
            for name in run.writers[:: max(1, len(run.writers) // 3)]:
                moment = since + 0.6 * (until - since)
                said = filled(run, text.replace("{epoch}", f"{moment:.0f}"), name, moment)
                log.say(moment, said, run.hosts.index(name))

    return show


@fault
def an_port_out(run: Run, host: Hosts, factor: float, begin: Place, device: int, text: str = "") -> Show:
    """A port loses its link for good: a pause while the library fails over, then seven ports do the work of eight."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    run.extra[min(first - run.first, run.spec.steps - 1)] += 22.0

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since, until = only(host), f"{run.spec.nic}_{device}", run.time_of(first) + 2.0, run.end + 60.0
        port_dark(run, sheet, name, device, since, until)
        if text:
            log.say(since + 1, filled(run, text.replace("{port}", port), name, since + 1), run.hosts.index(name))

    return show


@fault
def an_port_dies_at_end(run: Run, host: Hosts, device: int, retried_s: float = 25.0) -> Show:
    """The port whose loss ends the run: down after the last step, its sends retried until the retries are used up."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since, until = only(host), f"{run.spec.nic}_{device}", run.work_end + 2.0, run.end + 60.0
        sheet.put("hw_rdma_port_state", 0.0, since, until, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 4.0, since, since + retried_s, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 8.0, since + retried_s - 3.0, name, device=port)
        for metric in FLOWS:
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, until, name, device=port)

    return show


@fault
def an_card_off_bus(run: Run, host: Hosts, gpu: int) -> Show:
    """A GPU is off the bus: the kernel says so, its own gauges read nothing, the exporter takes longer."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since = only(host), str(gpu), run.work_end + 4.0
        sheet.put("hw_gpu_power_watts", 0.0, since, run.end + 60.0, name, gpu=card)
        sheet.put("hw_gpu_clock_mhz", 0.0, since, run.end + 60.0, name, gpu=card)
        sheet.put("hw_gpu_temperature_celsius", 0.0, since, run.end + 60.0, name, gpu=card)
        sheet.add("hw_dmesg_gpu_errors_total", 5.0, since, run.end + 60.0, name)
        sheet.add("hw_scrape_duration_seconds", 4.0, since, run.end + 60.0, name)

    return show


@fault
def an_gather_spike(run: Run, host: Hosts, at: Place, text: str, before_s: float = 75.0, to_gb: float = 2140.0) -> Show:
    """A host gathers the whole state for a save: its memory shoots up and the kernel kills the trainer."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, before_s + 70.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + before_s
        rank = run.hosts.index(name)
        up = ramp(dies - before_s + 5.0, before_s - 10.0)
        sheet.add("ray_node_mem_used", to_gb * 1e9 - 205e9, dies - before_s, dies + 3.0, name, shape=up)
        sheet.count("hw_oom_kills_total", 1.0, dies - 2.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies, filled(run, text, name, dies), rank)

    return show


@fault
def an_feed_gone(run: Run, at: Place, silent_s: float, text: str, every_s: float = 240.0) -> Show:
    """The data service is gone: all loaders wait and retry, the GPUs have nothing to do, nobody dies."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)
    run.batch_never_comes = True

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.work_end + 1.0
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end)
        sheet.scale("hw_gpu_clock_mhz", 0.2, since, run.end)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end)
        sheet.add("hw_procs_running", -9.0, since, run.end)
        for number in range(1, int(silent_s // every_s)):
            for rank, name in enumerate(run.hosts):
                moment = since + number * every_s + float(run.rng.uniform(0, 20.0))
                log.say(moment, filled(run, text, name, moment), rank)

    return show


@fault
def an_slow_xla(run: Run, alarm_s: float = 120.0) -> Show:
    """A large program compiles for long: XLA's alarm goes off on all hosts and later says how long it took."""

    def show(sheet: Sheet, log: JobLog) -> None:
        begin, long = run.steps_from + 2.0, run.spec.compile_s - 6.0
        stars = "*" * 32
        module = (
            "[Compiling module jit_train_step for GPU] Very slow compile? If you want to file a bug, run with envvar "
        )
        for rank in range(len(run.hosts)):
            moment = begin + alarm_s + float(run.rng.uniform(0, 1.0))
            head = f"E{glog(moment)}   28114 slow_operation_alarm.cc:73]"
            what = f"{module}XLA_FLAGS=--xla_dump_to=/tmp/foo and attach the results."
            log.say(moment, f"{head} \n{stars}\n{what}\n{stars}", rank)
            done = begin + long + float(run.rng.uniform(0, 1.0))
            took = f"{int(long // 60)}m{long % 60:.4f}s"
            head = f"E{glog(done)}   27562 slow_operation_alarm.cc:140] The operation took {took}"
            log.say(done, f"{head}\n{stars}\n{what}\n{stars}", rank)
        sheet.add("hw_gpu_power_watts", run.profile.idle_w + 12.0 - run.profile.active_w, begin, begin + long)
        sheet.add("hw_gpu_temperature_celsius", -24.0, begin, begin + long)
        sheet.put("ray_node_gpus_utilization", 0.0, begin, begin + long)
        sheet.add("hw_procs_running", 26.0, begin, begin + long)
        sheet.add("ray_node_cpu_utilization", 30.0, begin, begin + long)
        for metric in FLOWS:
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, begin, begin + long)

    return show


@fault
def an_cloudy_afternoon(run: Run, degrees: float = 4.0) -> Show:
    """Inlet air follows the day: all GPUs a few degrees up and down, far from any limit."""

    def show(sheet: Sheet, log: JobLog) -> None:
        begin = run.steps_from
        sheet.add(
            "hw_gpu_temperature_celsius",
            degrees,
            begin,
            run.work_end,
            shape=lambda t: 0.5 - 0.5 * np.cos(2 * np.pi * (t - begin) / 14_400.0),
        )

    return show
