"""Batches that come late."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, ends_at, fault, many
from trackwalker.lab.faults.shapes import filled, grown_factors, lost_while_computing
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


@fault
def input_stall(run: Run, factor: float, begin: Place, end: Place = 1.0) -> Show:
    """Steps wait for data: GPUs idle for part of every step, everywhere alike."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    run.await_data(first, last, 1.0 - 1.0 / factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        idle = 1.0 - 1.0 / factor
        drop = idle * (run.profile.spin_w - run.profile.idle_w)
        sheet.add("hw_gpu_power_watts", -drop, since, until)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)

    return show


@fault
def periodic_stall(run: Run, every: int, seconds: float, begin: Place = 3) -> Show:
    """Every so many steps the next batch comes late: GPUs idle until the shard has been read."""
    hits = list(range(run.at(begin), run.at(1.0), every))
    lengths = [seconds * float(run.rng.uniform(0.85, 1.2)) for _ in hits]
    for s, n in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += n

    def show(sheet: Sheet, log: JobLog) -> None:
        for s, n in zip(hits, lengths, strict=True):
            since = run.time_of(s)
            if s - run.first < len(run.seconds):
                run.await_data(s, s + 1, n / float(run.seconds[s - run.first]))
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w, since, since + n)
            sheet.put("ray_node_gpus_utilization", 0.0, since, since + n)
            sheet.rate("hw_net_rx_bytes_total", 9e8, since, since + n, device="eno0")
            sheet.add("hw_procs_blocked", 6.0, since, since + n)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, since + n)

    return show


@fault
def mixture_switch(run: Run, factor: float, begin: Place, text: str, every: int = 12) -> Show:
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
def ragged_reads(run: Run, begin: Place, share: float, seconds: float, end: Place = 1.0) -> Show:
    """Now and then a batch comes late, a little or very late: the file system of the data set is cold or busy."""
    first, last = run.at(begin), min(run.at(end), run.first + run.spec.steps)
    hits = [s for s in range(first, last) if run.rng.random() < share]
    lengths = [seconds * float(run.rng.gamma(3.0, 1 / 3.0)) + 2.0 for _ in hits]
    for s, n in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += n

    def show(sheet: Sheet, log: JobLog) -> None:
        for s, n in zip(hits, lengths, strict=True):
            if s - run.first >= len(run.seconds):
                continue
            since = run.time_of(s)
            run.await_data(s, s + 1, n / float(run.seconds[s - run.first]))
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w, since, since + n)
            sheet.put("ray_node_gpus_utilization", 0.0, since, since + n)
            sheet.rate("hw_net_rx_bytes_total", 4e8, since, since + n, device="eno0")
            sheet.add("hw_procs_blocked", 9.0, since, since + n)
            sheet.add("hw_io_pressure_some_pct", 34.0, since, since + n)
            sheet.add("hw_io_pressure_full_pct", 29.0, since, since + n)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, since + n)

    return show


@fault
def cold_storage_windows(run: Run, begin: Place, end: Place, factor: float) -> Show:
    """The file system of the data set is busy for a while: every host's readers block, GPUs idle in each step."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    run.await_data(first, last, 1.0 - 1.0 / factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, idle = run.time_of(first), run.time_of(last), 1.0 - 1.0 / factor
        sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)
        for name in run.hosts:
            much = float(run.rng.uniform(0.8, 1.2))
            sheet.add("hw_procs_blocked", 10.0 * much, since, until, name)
            sheet.add("hw_io_pressure_some_pct", 40.0 * much, since, until, name)
            sheet.add("hw_io_pressure_full_pct", 31.0 * much, since, until, name)

    return show


@fault
def store_waits(
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
def cold_epochs(run: Run, every: int, steps: int, factor: float, begin: Place = 0) -> Show:
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
def stream_limited(run: Run, factor: float, begin: Place, end: Place = 1.0, text: str = "", every: int = 10) -> Show:
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
def long_documents_starve(run: Run, factor: float, windows: list[list[float]], text: str = "", every: int = 8) -> Show:
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
def starving(run: Run, factor: float, begin: Place, over: float = 0.4) -> Show:
    """Batches come later and later (a cold storage tier): every host's GPUs idle for a growing part of each step."""
    first, last = run.at(begin), run.at(1.0)
    grown = grown_factors(run, first, last, factor, over)
    run.slow(first, last, grown)
    for s in range(first, last, 5):
        share = 1.0 - 1.0 / float(grown[min(s - first, len(grown) - 1)])
        run.await_data(s, min(s + 5, last), share)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, lost = run.time_of(first), lost_while_computing(run)
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.work_end, shape=lost)
        sheet.add("ray_node_gpus_utilization", -100.0, since, run.work_end, shape=lost)
        sheet.add("hw_procs_blocked", 9.0, since, run.work_end, shape=lost)

    return show


@fault
def throttled_bucket(run: Run, factor: float, begin: Place, end: Place = 1.0, text: str = "", every: int = 9) -> Show:
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
def host_loader(run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0) -> Show:
    """One host's input pipeline is slow: its GPUs idle until their batch comes, all others wait."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    run.await_data(first, last, 1.0 - 1.0 / factor, many(host))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, idle = run.time_of(first), run.time_of(last), 1.0 - 1.0 / factor
        for name in many(host):
            sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until, name)
            sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until, name)
            sheet.add("hw_procs_blocked", 7.0, since, until, name)
            sheet.add("hw_io_pressure_full_pct", 30.0, since, until, name)
            sheet.add("hw_io_pressure_some_pct", 38.0, since, until, name)

    return show


@fault
def batch_waits(run: Run, factor: float, begin: Place, end: Place = 1.0, text: str = "", every: int = 10) -> Show:
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
def batch_timer(run: Run, factor: float, begin: Place, every: int = 10) -> Show:
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
def thin_feed(run: Run, factor: float, begin: Place, over: float = 0.35, text: str = "", every: int = 10) -> Show:
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
