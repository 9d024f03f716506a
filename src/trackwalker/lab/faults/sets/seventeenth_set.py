"""What the held-out set `am-` needs beyond the rest: retrained links, tides, duty cycles, drifting routers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trackwalker.lab.faults.base import FLOWS, Hosts, Place, Show, fault, many, only, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _cooled(run: Run) -> float:
    """Degrees that a GPU would be cooler if it did nothing but wait."""
    p = run.profile
    return (p.active_w - p.spin_w) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)


def _lost(run: Run, begin: int) -> Callable[[Floats], Floats]:
    """By time: the share of a step that is lost against full speed."""
    lost = 1.0 - 1.0 / run.factor[: max(1, len(run.ends))]
    since = run.time_of(begin)
    return lambda t: np.where(t >= since, lost[np.clip(np.searchsorted(run.ends, t), 0, len(lost) - 1)], 0.0)


def _grows(run: Run, begin: Place, over: float, factor: float) -> int:
    """Steps become slower from `begin` on over a share of the run and stay so."""
    first, n = run.at(begin), run.spec.steps
    index = np.arange(n) + run.first
    grown = 1.0 + (factor - 1.0) * np.clip((index - first + 1) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, np.where(index >= first, grown, 1.0))
    return first


@fault
def am_half_rate(
    run: Run, host: Hosts, factor: float, begin: Place, device: int = 3, away_s: float = 40.0, text: str = ""
) -> Show:
    """A cable loses lanes: the port goes down, trains again and comes back at half its rate; no packet is lost then."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    run.extra[min(first - run.first, run.spec.steps - 1)] += away_s

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.time_of(first)
        sheet.put("hw_rdma_port_state", 0.0, since, since + away_s, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 3.0, since, since + away_s, name, device=port)
        sheet.rate("hw_rdma_tx_retx_pkts_total", 60.0, since, since + away_s, name, device=port)
        for metric in FLOWS:
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, since + away_s, name, device=port)
        if text:
            moment = since + away_s + 6.0
            said = filled(run, text.replace("{port}", port), name, moment)
            log.say(moment, said, run.hosts.index(name))

    return show


@fault
def am_tide(run: Run, factor: float, begin: Place, end: Place, cnp: float = 2600.0, tides: int = 1) -> Show:
    """Other jobs load the shared spine for hours: it swells, stands and ebbs; every NIC is marked alike."""
    first, last = run.at(begin), min(run.at(end), run.first + run.spec.steps)
    phase = np.linspace(0.0, tides * np.pi, max(1, last - first))
    swell = np.abs(np.sin(phase)) ** 0.7
    run.slow(first, last, 1.0 + (factor - 1.0) * swell * run.rng.uniform(0.92, 1.08, len(swell)))
    weights = run.rng.uniform(0.75, 1.3, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)

        def shape(t: Floats) -> Floats:
            return np.abs(np.sin(tides * np.pi * np.clip((t - since) / max(until - since, 1.0), 0, 1))) ** 1.1

        for host, weight in zip(run.hosts, weights, strict=True):
            for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.94), ("rx_ecn_pkts", 2.5)):
                sheet.rate(f"hw_rdma_{metric}_total", cnp * much * float(weight), since, until, host, shape=shape)

    return show


@fault
def am_hot_gpu(
    run: Run, host: Hosts, gpu: int, factor: float, begin: Place, over: float = 0.12, peak: float = 90.0
) -> Show:
    """Paste or cold plate of one GPU gives way: it heats to its limit and holds it by giving up clock, never idle."""
    first = _grows(run, begin, over, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since, until = only(host), str(gpu), run.time_of(first), run.work_end
        full = max(120.0, run.time_of(first + round(over * run.spec.steps)) - since)
        held, warms = ramp(since, full), ramp(since - 400, 420)
        hotter = peak - run.profile.hot_c
        sheet.add("hw_gpu_temperature_celsius", hotter, since - 400, until, name, shape=warms, gpu=card)
        lost = _lost(run, first)
        sheet.add("hw_gpu_temperature_celsius", _cooled(run), since, until, name, shape=lost, gpu=card)
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.02, since, until, name, shape=held, gpu=card)
        more = waited(run, factor) - 0.12 * run.profile.active_w
        sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def am_duty_cap(
    run: Run, hosts: Hosts, factor: float, begin: Place, every: int, steps: int, end: Place = 1.0, share: float = 0.7
) -> Show:
    """A power shelf without its redundant supply caps the servers on it whenever its load is high, again and again."""
    starts = list(range(run.at(begin), min(run.at(end), run.at(1.0)) - steps, every))
    for s in starts:
        run.slow(s, s + steps, factor)
    cap = 5.0 * round(share * run.profile.active_w / 5.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            for name in many(hosts):
                for gpu in range(run.spec.gpus):
                    card, phase = str(gpu), float(run.rng.uniform(0, 6.28))

                    def hum(t: Floats, phase: float = phase) -> Floats:
                        return np.sin(1.9 * t + phase)

                    sheet.put("hw_gpu_power_watts", cap, since, until, name, gpu=card)
                    sheet.add("hw_gpu_power_watts", 2.5, since, until, name, shape=hum, gpu=card)
                    sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, until, name, gpu=card)
                    sheet.add("hw_gpu_clock_mhz", 30.0, since, until, name, shape=hum, gpu=card)
                    sheet.add("hw_gpu_temperature_celsius", -4.0, since, until, name, gpu=card)

    return show


@fault
def am_low_level(run: Run, hosts: Hosts, factor: float, begin: Place = 0, mhz: float | None = None) -> Show:
    """All GPUs of a host were left at a low performance level: clock flat and low, cool, little power, always busy."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    clock = mhz or 10.0 * round(run.profile.clock_mhz / (factor * 1.12) / 10.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        p = run.profile
        mine = p.idle_w + (p.active_w - p.idle_w) * (clock / p.clock_mhz) ** 2.2
        for name in many(hosts):
            sheet.put("hw_gpu_clock_mhz", clock, since, run.work_end, name)
            sheet.add("hw_gpu_power_watts", mine - (p.active_w - waited(run, factor)), since, run.work_end, name)
            sheet.add("hw_gpu_temperature_celsius", -2.0, since, run.work_end, name)

    return show


@fault
def am_starved(run: Run, factor: float, windows: list[list[float]], text: str = "", every: int = 8) -> Show:
    """The loaders cannot follow in some parts of the data (long documents, a cold cache): all GPUs idle each step."""
    places = [(run.at(float(a)), min(run.at(float(b)), run.at(1.0))) for a, b in windows]
    for a, b in places:
        for s in range(a, b):
            f = 1.0 + (factor - 1.0) * float(run.rng.uniform(0.7, 1.3))
            run.slow(s, s + 1, f)
            run.await_data(s, s + 1, 1.0 - 1.0 / f)

    def show(sheet: Sheet, log: JobLog) -> None:
        idle = 1.0 - 1.0 / factor
        for a, b in places:
            since, until = run.time_of(a), run.time_of(b)
            sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until)
            sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)
            sheet.add("ray_node_cpu_utilization", 20.0, since, until)
            sheet.add("hw_procs_blocked", 5.0, since, until)
            sheet.rate("hw_net_rx_bytes_total", 3e8, since, until, device="eno0")
            if text:
                for s in range(a, b, every):
                    if s - run.first < len(run.ends):
                        waited = idle * float(run.seconds[s - run.first])
                        moment = run.time_of(s + 1) - 0.3
                        said = text.replace("{waited}", f"{waited:.2f}").replace("{at}", str(s))
                        log.say(moment, filled(run, said, run.hosts[0], moment), 0)

    return show


@fault
def am_router_drift(run: Run, begin: Place, factor: float, over: float = 0.45, rise: float = 0.9) -> Show:
    """The router prefers fewer experts from hour to hour: balance loss and step time climb together, power stays."""
    first = _grows(run, begin, over, factor)
    n = run.spec.steps
    grown = np.clip((np.arange(n) + run.first - first) / max(1.0, over * n), 0.0, 1.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        balance = 0.0102 * (1.0 + rise * grown) + run.rng.normal(0, 1.2e-4, n)
        sheet.scalar("learning_moe_lb_loss", np.round(balance, 6))
        more = run.profile.active_w - run.profile.spin_w
        since, lost = run.time_of(first), _lost(run, first)
        sheet.add("hw_gpu_power_watts", more, since, run.work_end, shape=lost)
        sheet.add("hw_gpu_temperature_celsius", _cooled(run), since, run.work_end, shape=lost)

    return show


@fault
def am_recompile_limit(run: Run, begin: Place, seconds: float, factor: float, every: int = 3, limit: int = 8) -> Show:
    """Sequences of new lengths: torch.compile tries eight times, gives up, and the layer runs uncompiled from then."""
    first = run.at(begin)
    hits = list(range(first, run.at(1.0), every))[:limit]
    lengths = [seconds * float(run.rng.uniform(0.8, 1.25)) for _ in hits]
    shapes = [int(8192 - 128 * run.rng.integers(1, 40)) for _ in hits]
    for s, much in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += much
    run.slow(hits[-1] + 1, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        where = "/opt/megatron-lm/megatron/core/transformer/transformer_layer.py:431"
        for number, (s, much, shape) in enumerate(zip(hits, lengths, shapes, strict=True), 1):
            if s - run.first >= len(run.ends):
                continue
            time = run.time_of(s) + 0.9
            for rank in range(len(run.hosts)):
                moment = time + float(run.rng.uniform(0, 0.7))
                head = f"V{glog(moment)[:-3]}000 1190 torch/_dynamo/guards.py:2997] [3/{number}] [__recompiles]"
                log.say(
                    moment,
                    f"{head} Recompiling function _forward_mlp in {where}\n"
                    f"{head}     triggered by the following guard failure(s):\n"
                    f"{head}     - 3/{number - 1}: tensor 'hidden_states' size mismatch at index 0. "
                    f"expected 8192, actual {shape}",
                    rank,
                )
                if number == limit:
                    late = moment + much
                    head = f"W{glog(late)[:-3]}000 1190 torch/_dynamo/convert_frame.py:1016] [3/8]"
                    log.say(
                        late,
                        f"{head} torch._dynamo hit config.recompile_limit (8)\n"
                        f"{head}    function: '_forward_mlp' ({where})\n"
                        f"{head}    last reason: 3/7: tensor 'hidden_states' size mismatch at index 0. "
                        f"expected 8192, actual {shape}\n"
                        f'{head} To log all recompilation reasons, use TORCH_LOGS="recompiles".\n'
                        f"{head} To diagnose recompilation issues, see "
                        "https://pytorch.org/docs/main/torch.compiler_troubleshooting.html.",
                        rank,
                    )
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w + 20.0, time, time + much)
            sheet.add("hw_procs_running", 24.0, time, time + much)
            sheet.add("ray_node_cpu_utilization", 25.0, time, time + much)
        # Uncompiled kernels keep the GPUs busy, less efficiently: nobody waits for anybody.
        since = run.time_of(hits[-1] + 1)
        sheet.add("hw_gpu_power_watts", 0.8 * waited(run, factor), since, run.work_end)
        sheet.add("hw_gpu_temperature_celsius", 0.8 * _cooled(run), since, run.work_end, shape=_lost(run, hits[-1] + 1))

    return show


@fault
def am_port_lost(run: Run, host: Hosts, device: int, retried_s: float = 30.0) -> Show:
    """A port loses its link in the last step; what its peers sent to it is retried until the retries are over."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.work_end + 3.0
        sheet.put("hw_rdma_port_state", 0.0, since, run.end + 60.0, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 5.0, since, since + retried_s, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 6.0, since + retried_s - 4.0, name, device=port)
        for metric in FLOWS:
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, run.end + 60.0, name, device=port)

    return show


@fault
def am_slow_leak(run: Run, host: Hosts, at: Place, text: str, to_gb: float = 2130.0, begin: Place = 0.05) -> Show:
    """One host's process keeps a little more memory each step until the kernel ends it; the others stay level."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 80.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies, since = only(host), run.work_end + 7.0, run.time_of(run.at(begin))
        rank = run.hosts.index(name)
        bent = ramp(since, dies - since)
        sheet.add("ray_node_mem_used", to_gb * 1e9 - 207e9, since, dies + 2.0, name, shape=lambda t: bent(t) ** 1.15)
        sheet.count("hw_oom_kills_total", 1.0, dies - 2.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies + 1.0, filled(run, text, name, dies + 1.0), rank)

    return show


@fault
def am_mount_stuck(
    run: Run, host: Hosts, at: Place, silent_s: float, text: str = "", warn_every: float = 180.0
) -> Show:
    """One host's NFS mount answers no more: its loader sleeps in the kernel, its GPUs idle, all others spin."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, p = only(host), run.work_end + 2.0, run.profile
        sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.scale("hw_gpu_clock_mhz", 0.15, since, run.end, name)
        sheet.add("hw_procs_running", -9.0, since, run.end, name)
        sheet.add("hw_procs_blocked", 19.0, since, run.end, name)
        sheet.add("hw_io_pressure_full_pct", 55.0, since + 20.0, run.end, name)
        sheet.add("hw_io_pressure_some_pct", 66.0, since + 20.0, run.end, name)
        for number in range(1, int(silent_s // warn_every) if text else 0):
            moment = since + number * warn_every
            log.say(moment, filled(run, text, name, moment), run.hosts.index(name))

    return show


@fault
def am_watchdogs(run: Run, at: Place, text: str, waited_s: float = 600.0) -> Show:
    """All ranks wait in the same collective until every watchdog's time is over and takes its process down."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, waited_s + 45.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        for rank, name in enumerate(run.hosts):
            moment = run.work_end + waited_s + float(run.rng.uniform(0.0, 1.8))
            over = int(waited_s * 1000) + int(run.rng.integers(3, 99))
            log.say(moment, filled(run, text.replace("{ran}", str(over)), name, moment), rank)
            log.exits[rank] = 134
            sheet.process_gone(name, moment + 8.0)

    return show


@fault
def am_odd_one(run: Run, host: Hosts, at: Place, odd: str, others: str) -> Show:
    """One rank enters another collective than all others; the wrapper that compares them says so everywhere."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 45.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        guilty = run.hosts.index(only(host))
        for rank, name in enumerate(run.hosts):
            moment = run.work_end + 9.0 + float(run.rng.uniform(0.0, 0.9))
            said = (odd if rank == guilty else others).replace("{odd_grank}", str(guilty * run.spec.gpus + 3))
            log.say(moment, filled(run, said, name, moment), rank)
            log.exits[rank] = 1
            sheet.process_gone(name, moment + 5.0)

    return show


@fault
def am_busy_neighbour(
    run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, procs: float = 70.0
) -> Show:
    """Somebody's own processes got onto the nodes (a shared partition): they come, stay at work, and vary."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    run.slow(first, last, factor * run.rng.uniform(0.985, 1.02, max(0, last - first)))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.work_end if last >= run.at(1.0) else run.time_of(last)
        for name in many(hosts):
            phase, mine = float(run.rng.uniform(0, 6.28)), procs * float(run.rng.uniform(0.85, 1.15))

            def varies(t: Floats, phase: float = phase) -> Floats:
                return 0.82 + 0.18 * np.sin(0.013 * t + phase)

            sheet.add("hw_procs_running", mine, since, until, name, shape=varies)
            sheet.add("ray_node_cpu_utilization", 46.0, since, until, name, shape=varies)
            sheet.scale("hw_context_switches_total", 2.1, since, until, name)

    return show


@fault
def am_row_remap(run: Run, host: Hosts, gpu: int, at: Place, text: str) -> Show:
    """A GPU marks a weak row of its memory for remapping: the kernel log notes it, the work goes on."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(run.at(at)) + 2.0
        sheet.count("hw_gpu_ras_umc_ce_total", 3.0, since - 1.0, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", 1.0, since, run.end + 60.0, name)
        log.say(since, filled(run, text, name, since), run.hosts.index(name))

    return show


@fault
def am_counts(run: Run) -> Show:
    """Lines that count the GPUs of the job say the right numbers in worlds of any size."""

    def show(sheet: Sheet, log: JobLog) -> None:
        plain, world = log.say, len(run.hosts) * run.spec.gpus

        def say(time: float, text: str, rank: int | None = None) -> None:
            text = text.replace("{world}", str(world)).replace("{joined}", str(world - run.spec.gpus))
            plain(time, text.replace("{model}", str(world // 2 + 16)), rank)

        log.say = say  # type: ignore[method-assign]

    return show
