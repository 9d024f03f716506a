"""Rarer shapes of slowness (and of none), for scenarios that tuning never sees."""

from __future__ import annotations

from typing import Any

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing, only
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Run


@fault
def counter_rise(
    run: Run,
    metric: str,
    per_s: float,
    hosts: Hosts | None = None,
    begin: Place = 0,
    end: Place = 1.0,
    device: int | None = None,
    gpu: int | None = None,
) -> Show:
    """A counter rises on some hosts (or all), without consequence for the run."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for host in many(hosts) if hosts else run.hosts:
            since, until = run.time_of(run.at(begin)), run.end if end == 1.0 else run.time_of(run.at(end))
            sheet.rate(metric, per_s, since, until, host, **_pick(run, device, gpu))

    return show


@fault
def gauge_shift(
    run: Run,
    metric: str,
    hosts: Hosts | None = None,
    begin: Place = 0,
    end: Place = 1.0,
    add: float | None = None,
    scale: float | None = None,
    put: float | None = None,
    device: int | None = None,
    gpu: int | None = None,
    lead_s: float = 0.0,
) -> Show:
    """A gauge moves on some hosts (or all), without consequence for the run."""

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(run.at(begin)) - lead_s
        until, pick = run.end if end == 1.0 else run.time_of(run.at(end)), _pick(run, device, gpu)
        for host in many(hosts) if hosts else run.hosts:
            if add is not None:
                sheet.add(metric, add, since, until, host, **pick)
            if scale is not None:
                sheet.scale(metric, scale, since, until, host, **pick)
            if put is not None:
                sheet.put(metric, put, since, until, host, **pick)

    return show


def _pick(run: Run, device: int | None, gpu: int | None) -> dict[str, Any]:
    named: dict[str, Any] = {} if device is None else {"device": f"{run.spec.nic}_{device}"}
    return named | ({} if gpu is None else {"gpu": str(gpu)})


@fault
def slower(run: Run, factor: float, begin: Place, end: Place = 1.0, over: float = 0.0) -> Show:
    """Steps take longer and nothing that is collected says why; `over` (of the run) lets it grow slowly."""
    first, last = run.at(begin), run.at(end)
    index = np.arange(run.spec.steps) + run.first
    grown = np.clip((index - first + 1) / max(1.0, over * run.spec.steps), 0.0, 1.0)
    inside = (index >= first) & (index < last)
    run.factor = np.maximum(run.factor, np.where(inside, 1.0 + (factor - 1.0) * grown, 1.0))
    return nothing


@fault
def nic_bursts(
    run: Run,
    hosts: Hosts,
    factor: float,
    bursts: int,
    steps: int,
    begin: Place,
    end: Place = 1.0,
    device: int = 3,
    retx: float = 1500.0,
) -> Show:
    """A NIC that loses packets for some steps, rests, and begins again."""
    starts = np.linspace(run.at(begin), run.at(end) - steps, bursts).astype(int).tolist()
    lengths = [steps + int(run.rng.integers(-1, 3)) for _ in starts]
    for s, n in zip(starts, lengths, strict=True):
        run.slow(s, s + n, factor * run.rng.uniform(0.97, 1.03))

    def show(sheet: Sheet, log: JobLog) -> None:
        port = f"{run.spec.nic}_{device}"
        for s, n in zip(starts, lengths, strict=True):
            since, until = run.time_of(s), run.time_of(s + n)
            for host in many(hosts):
                for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.9), ("tx_ack_timeout", 0.006)):
                    sheet.rate(f"hw_rdma_{metric}_total", retx * share, since, until, host, device=port)

    return show


@fault
def bad_receiver(
    run: Run, host: Hosts, senders: Hosts, factor: float, begin: Place, device: int = 4, retx: float = 240.0
) -> Show:
    """A NIC loses what it should acknowledge: its senders retransmit, and it sees every packet twice."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, port, total = run.time_of(first), f"{run.spec.nic}_{device}", 0.0
        for sender in many(senders):
            mine = retx * float(run.rng.uniform(0.8, 1.2))
            total += mine
            sheet.rate("hw_rdma_tx_retx_pkts_total", mine, since, run.work_end, sender, device=port)
            sheet.rate("hw_rdma_ccl_tx_retx_pkts_total", 0.95 * mine, since, run.work_end, sender, device=port)
            sheet.rate("hw_rdma_tx_ack_timeout_total", 0.01 * mine, since, run.work_end, sender, device=port)
        sheet.rate("hw_rdma_rx_dup_request_total", total, since, run.work_end, only(host), device=port)

    return show


@fault
def host_heat(run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0, peak: float = 102.0) -> Show:
    """Every GPU of a host overheats (a fan, the air): all of them clock down, not quite alike."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for card in range(run.spec.gpus):
            hotter = peak - run.profile.hot_c + (1 - 1 / factor) * 25.0 - float(run.rng.uniform(0, 5))
            name, gpu = only(host), str(card)
            heat = ramp(since - 300, 360)
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 300, until, name, shape=heat, gpu=gpu)
            slow = 1.0 / factor - 0.04 + float(run.rng.uniform(0, 0.06))
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, gpu=gpu)
            sheet.add("hw_gpu_power_watts", 40.0, since, until, name, gpu=gpu)

    return show


@fault
def capped(run: Run, factor: float, begin: Place, share: float = 0.72) -> Show:
    """All GPUs of the cluster get a lower power limit: less power, lower clocks, cooler, at full work."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        # The simulator lowers power for hosts that wait; here nobody waits, all compute at the limit.
        waiting = (1 - 1 / factor) * (run.profile.active_w - run.profile.spin_w)
        want = share * run.profile.active_w - (run.profile.active_w - waiting)
        sheet.add("hw_gpu_power_watts", want, since, run.work_end)
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, run.work_end)
        sheet.add("hw_gpu_temperature_celsius", -7.0, since, run.work_end)

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
