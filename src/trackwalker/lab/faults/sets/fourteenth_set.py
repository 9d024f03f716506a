"""What the held-out set `aj-` needs beyond the rest: half a chassis, a lossy fabric, uploads after saves."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import FLOWS, Hosts, Place, Show, fault, many, only, port_dark, waited
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


@fault
def aj_half_chassis(
    run: Run, host: Hosts, factor: float, begin: Place, over: float = 0.1, peak: float = 92.0, first_gpu: int = 4
) -> Show:
    """A fan of a server fails: the GPUs behind it warm up to their limit and clock down, those beside it do not."""
    first, n = run.at(begin), run.spec.steps
    index = np.arange(n) + run.first
    grown = 1.0 + (factor - 1.0) * np.clip((index - first) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, grown)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, until = only(host), run.time_of(first), run.work_end
        full = max(60.0, run.time_of(first + round(over * n)) - since)
        for card in range(first_gpu, run.spec.gpus):
            gpu, far = str(card), float(run.rng.uniform(0, 4))
            cooled = waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38)
            heat = ramp(since - 500.0, full + 400.0)
            hotter = peak - run.profile.hot_c - far
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 500.0, until, name, shape=heat, gpu=gpu)
            held = ramp(since, full)
            sheet.add("hw_gpu_temperature_celsius", 0.6 * cooled, since, until, name, shape=held, gpu=gpu)
            slow = 1.0 / factor - 0.02 + 0.012 * far
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, shape=held, gpu=gpu)
            more = waited(run, factor) - 0.08 * run.profile.active_w
            sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=gpu)

    return show


@fault
def aj_two_ports(
    run: Run, host: Hosts, factor: float, begin: Place, devices: list[int], end: Place = 1.0, retx: float = 700.0
) -> Show:
    """Both ports of one card lose packets (a bad riser, a bad breakout cable): both send again, now more, now less."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor * run.rng.uniform(0.97, 1.03, max(0, min(last, run.at(1.0)) - first)))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.end if last >= run.at(1.0) else run.time_of(last)

        def breath(t: Floats) -> Floats:
            return 0.75 + 0.25 * np.sin(0.011 * (t - since))

        for device in devices:
            port, mine = f"{run.spec.nic}_{device}", retx * float(run.rng.uniform(0.7, 1.3))
            for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.94), ("tx_ack_timeout", 0.006)):
                sheet.rate(f"hw_rdma_{metric}_total", mine * share, since, until, only(host), shape=breath, device=port)

    return show


@fault
def aj_background_retx(run: Run, most: float = 4.0, share: float = 1.0) -> Show:
    """A large RoCE fabric loses a packet now and then everywhere: a few retransmits a second on most ports."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in run.hosts:
            for device in range(8):
                if run.rng.random() >= share:
                    continue
                port, mine = f"{run.spec.nic}_{device}", most * float(run.rng.uniform(0.05, 1.0))
                sheet.rate("hw_rdma_tx_retx_pkts_total", mine, run.steps_from, run.work_end, name, device=port)
                sheet.rate(
                    "hw_rdma_ccl_tx_retx_pkts_total", 0.9 * mine, run.steps_from, run.work_end, name, device=port
                )

    return show


@fault
def aj_lossy_fabric(
    run: Run, factor: float, begin: Place, end: Place = 1.0, cnp: float = 900.0, retx: float = 25.0
) -> Show:
    """The switches' buffers overflow: every host is told to slow down and still has to send some packets again."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor * run.rng.uniform(0.97, 1.03, max(0, min(last, run.at(1.0)) - first)))
    weights = run.rng.uniform(0.6, 1.4, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.end if last >= run.at(1.0) else run.time_of(last)
        for name, weight in zip(run.hosts, weights, strict=True):
            for metric, much in (("rx_cnp_pkts", cnp), ("tx_cnp_pkts", 0.92 * cnp), ("rx_ecn_pkts", 2.1 * cnp)):
                sheet.rate(f"hw_rdma_{metric}_total", much * float(weight), since, until, name)
            for metric, much in (
                ("tx_retx_pkts", retx),
                ("ccl_tx_retx_pkts", 0.9 * retx),
                ("rx_dup_request", 0.6 * retx),
            ):
                sheet.rate(f"hw_rdma_{metric}_total", much * float(weight), since, until, name)

    return show


@fault
def aj_cap_windows(run: Run, factor: float, windows: list[list[float]], share: float = 0.72) -> Show:
    """The site lowers the power limit of all its GPUs at hours of high demand, and lifts it again."""
    places = [(run.at(float(a)), run.at(float(b))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        want = share * run.profile.active_w - (run.profile.active_w - waited(run, factor))
        for a, b in places:
            since, until = run.time_of(a), run.time_of(b)
            sheet.add("hw_gpu_power_watts", want, since, until)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, until)
            sheet.add("hw_gpu_temperature_celsius", -6.0, since, until)

    return show


@fault
def aj_step_down(run: Run, host: Hosts, gpu: int, factors: list[float], begins: list[float]) -> Show:
    """One GPU's clock steps down (a weak voltage regulator), later once more: cool, and never waiting for anybody."""
    places = [*(run.at(float(b)) for b in begins), run.at(1.0)]
    for number, factor in enumerate(factors):
        run.slow(places[number], places[number + 1], factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, p = only(host), str(gpu), run.profile
        for number, factor in enumerate(factors):
            since = run.time_of(places[number])
            until = run.time_of(places[number + 1]) if number + 1 < len(factors) else run.work_end
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.02, since, until, name, gpu=card)
            mine = p.idle_w + (p.active_w - p.idle_w) * factor**-1.6
            sheet.add("hw_gpu_power_watts", mine - (p.active_w - waited(run, factor)), since, until, name, gpu=card)
            sheet.add("hw_gpu_temperature_celsius", -4.0, since, until, name, gpu=card)

    return show


@fault
def aj_upload_hog(run: Run, host: Hosts, factor: float, steps: int, procs: float = 80.0) -> Show:
    """After every save a side program of one host packs the checkpoint for upload and takes its processors."""
    period = run.spec.checkpoint_period
    starts = [s + 2 for s in range(run.first, run.at(1.0)) if s and s % period == 0]
    for s in starts:
        run.slow(s, s + steps, factor * float(run.rng.uniform(0.97, 1.03)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            for name in many(host):
                sheet.add("hw_procs_running", procs * float(run.rng.uniform(0.9, 1.1)), since, until, name)
                sheet.scale("hw_context_switches_total", 2.3, since, until, name)
                sheet.add("ray_node_cpu_utilization", 58.0, since, until, name)
                sheet.rate("hw_net_tx_bytes_total", 6e8, since, until, name, device="eno0")

    return show


@fault
def aj_cold_epochs(run: Run, every: int, steps: int, factor: float, begin: Place = 0) -> Show:
    """Each epoch opens new shards that no cache holds: its first steps wait for batches on all hosts, then fewer."""
    starts = [s for s in range(run.at(begin), run.at(1.0)) if (s - run.at(begin)) % every == 0]
    fade = 1.0 + (factor - 1.0) * np.linspace(1.0, 0.35, steps)
    for s in starts:
        for i, f in enumerate(fade.tolist()):
            if s + i < run.at(1.0):
                run.slow(s + i, s + i + 1, f * float(run.rng.uniform(0.95, 1.05)))
                run.await_data(s + i, s + i + 1, 1.0 - 1.0 / f)

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            for i, f in enumerate(fade.tolist()):
                since, until, idle = run.time_of(s + i), run.time_of(s + i + 1), 1.0 - 1.0 / f
                sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until)
                sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)
                sheet.add("hw_procs_blocked", 16.0 * idle, since, until)
                sheet.add("hw_io_pressure_some_pct", 90.0 * idle, since, until)
                sheet.add("hw_io_pressure_full_pct", 75.0 * idle, since, until)
                sheet.rate("hw_net_rx_bytes_total", 1.2e9 * idle, since, until, device="eno0")

    return show


@fault
def aj_leaf_out(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place, device: int = 4) -> Show:
    """A leaf switch restarts: the same port of the hosts below it is down, their other ports carry its traffic."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.end if last >= run.at(1.0) else run.time_of(last)
        for name in many(hosts):
            a = since + float(run.rng.uniform(0, 3))
            port_dark(run, sheet, name, device, a, until)

    return show


@fault
def aj_jax_recompiles(run: Run, begin: Place, share: float, seconds: float) -> Show:
    """Packed batches of ever new lengths: jit compiles for each new shape, as JAX_LOG_COMPILES tells."""
    first = run.at(begin)
    hits = [s for s in range(first, run.first + run.spec.steps) if s == first or run.rng.random() < share]
    lengths = [seconds * float(run.rng.uniform(0.85, 1.2)) for _ in hits]
    shapes = [int(8192 - 64 * run.rng.integers(1, 90)) for _ in hits]
    for s, n in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += n

    def show(sheet: Sheet, log: JobLog) -> None:
        rows = len(run.hosts) * run.spec.gpus
        spread = f"GSPMDSharding({{devices=[{rows},1]<=[{rows}]}})"
        for s, n, shape in zip(hits, lengths, shapes, strict=True):
            if s - run.first >= len(run.ends):
                continue
            time = run.time_of(s) + 0.6
            for rank in range(len(run.hosts)):
                a, b = time + float(run.rng.uniform(0, 0.5)), time + n + float(run.rng.uniform(-0.3, 0.3))
                log.say(
                    a,
                    f"W{glog(a)}   27562 pxla.py:1906] Compiling jit(train_step) with global shapes and types "
                    f"[ShapedArray(int32[{rows},{shape}]), ShapedArray(int32[{rows},{shape}])]. Argument mapping: "
                    f"({spread}, {spread}).",
                    rank,
                )
                log.say(
                    b,
                    f"W{glog(b)}   27562 dispatch.py:206] Finished XLA compilation of jit(train_step) in {n:.9f} sec",
                    rank,
                )
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w + 15.0, time, time + n)
            sheet.add("hw_procs_running", 24.0, time, time + n)
            sheet.add("ray_node_cpu_utilization", 22.0, time, time + n)
            for metric in FLOWS:
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, time, time + n)

    return show


@fault
def aj_one_gpu_absent(run: Run, host: Hosts, gpu: int, at: Place, silent_s: float) -> Show:
    """One GPU never starts the next collective (its launching thread is stuck): it idles, all others spin for it."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.work_end + 1.0
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end, name, gpu=str(gpu))
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name, GpuIndex=str(gpu))

    return show


@fault
def aj_eval_eats_memory(
    run: Run, host: Hosts, at: Place, text: str, to_gb: float = 2150.0, over_s: float = 420.0
) -> Show:
    """One host's evaluation loader copies its data into memory until the kernel kills a process of the trainer."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 90.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 7.0
        rank, grown = run.hosts.index(name), ramp(dies - over_s, over_s - 20.0)
        sheet.add("ray_node_mem_used", to_gb * 1e9 - 204e9, dies - over_s, dies + 2.0, name, shape=grown)
        sheet.count("hw_oom_kills_total", 1.0, dies - 1.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies, filled(run, text, name, dies), rank)

    return show


@fault
def aj_pcie_trickle(run: Run, host: Hosts, gpu: int, per_hour: float = 30.0) -> Show:
    """A GPU's PCIe link corrects an error now and then, as links do; nothing is slower for it."""

    def show(sheet: Sheet, log: JobLog) -> None:
        rate = per_hour / 3600.0
        sheet.rate("hw_gpu_pcie_correctable_total", rate, run.steps_from, run.end, only(host), gpu=str(gpu))

    return show
