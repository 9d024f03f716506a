"""Rarer shapes of trouble (and of no trouble), for scenarios that tuning never sees."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing, only
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Run, make_hosts


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
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w, since, since + n)
            sheet.put("ray_node_gpus_utilization", 0.0, since, since + n)
            sheet.rate("hw_net_rx_bytes_total", 9e8, since, since + n, device="eno0")
            sheet.add("hw_procs_blocked", 6.0, since, since + n)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, since + n)

    return show


@fault
def save_cut(run: Run, lasted_s: float) -> Show:
    """A save begins after the last step and the end of the run comes before it is done."""
    run.silent_s = max(run.silent_s, lasted_s)
    if run.hang_step is not None and run.hang_step >= run.first + run.spec.steps:
        run.hang_step = None  # nobody spins in a collective: all are writing

    def show(sheet: Sheet, log: JobLog) -> None:
        log.run = copy(run)
        log.run.saves = list(run.saves)  # the log never says that it was saved
        run.saves.append((run.work_end + 1.0, run.end, run.first + len(run.ends) - 1))

    return show


@fault
def no_exit(run: Run, host: Hosts) -> Show:
    """A node that is gone reports no exit."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            log.exits[run.hosts.index(name)] = 0

    return show


@fault
def never_scraped(run: Run, host: Hosts) -> Show:
    """A host whose exporters never answered and whose worker log was not kept."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            sheet.down(name, 0.0, np.inf)
            log.hide_workers.add(run.hosts.index(name))

    return show


@fault
def tail(run: Run, seconds: float) -> Show:
    """After the last step the teardown takes its time."""
    run.silent_s = max(run.silent_s, float(seconds))
    return nothing


@fault
def empty_database(run: Run) -> Show:
    """Prometheus never started, so nothing was stored."""

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.only_between(0.0, 0.0)
        log.say(run.training_begin + 30.0, "[Prometheus] FAILED: could not bind any port", 0)

    return show


@fault
def foreign_database(run: Run, earlier_s: float = 0.0) -> Show:
    """The database beside the log is another job's: of other nodes, or (earlier) of the same nodes before."""

    def show(sheet: Sheet, log: JobLog) -> None:
        mine = copy(run)
        log.run = mine
        mine.loss = run.loss * 0.8 + 0.9
        if earlier_s:
            mine.start = run.start + earlier_s
            mine.ends = run.ends + earlier_s
            mine.saves = [(a + earlier_s, b + earlier_s, s) for a, b, s in run.saves]
        else:
            names = make_hosts(3 * len(run.hosts), np.random.default_rng(int(run.job_id)))
            mine.hosts = [h for h in names if h not in run.hosts][: len(run.hosts)]

    return show


@fault
def stage_stops(
    run: Run,
    stage: str,
    how: str,
    text: str,
    host: Hosts | None = None,
    but: Hosts | None = None,
    took_s: float = 900.0,
) -> Show:
    """The run ends inside a stage: the stages before it went well, the ones after it never began."""
    run.zero_steps = True
    run.spec.init_s = max(1.0, took_s - 20.0)
    before = ["Preflight", "Docker pull", "ECC check", "Training"]

    def show(sheet: Sheet, log: JobLog) -> None:
        log.no_training, log.stages = True, False
        time = run.start
        for name in before[: before.index(stage)]:
            log.say(time, f"== {name} BEGIN (timeout=900s) ==")
            log.say(time + 11.0, f"== {name} END (11s) ==")
            time += 12.0
        log.say(time, f"== {stage} BEGIN ({'no timeout' if stage == 'Training' else f'timeout={took_s:.0f}s'}) ==")
        spared = many(but) if but else []
        hit = many(host) if host else [h for h in run.hosts if h not in spared]
        for rank, name in enumerate(run.hosts):
            if name in hit:
                said = text.replace("{host}", name).replace("{rank}", str(rank)).rstrip("\n")
                log.say(time + 4.0 + 0.01 * rank, said, rank)
                log.exits[rank] = 1
        log.say(time + took_s, f"== {stage} {how} ==")
        log.reason = f"{stage} {how}"

    return show


@fault
def train_timeout(run: Run) -> Show:
    """The training stage runs into its own time limit."""

    def show(sheet: Sheet, log: JobLog) -> None:
        limit = int(run.end - run.training_begin)
        how = f"TIMEOUT ({limit}s/{limit}s)"
        log.say(run.end - 3.0, f"== Training {how} ==")
        log.reason = f"Training {how}"
        log.exits = dict.fromkeys(range(len(run.hosts)), 143)

    return show


@fault
def loss_bump(run: Run, at: Place, jump: float = 1.2, steps: int = 9) -> Show:
    """The loss jumps and comes back by itself."""
    first = run.at(at) - run.first
    after = np.arange(len(run.loss) - first)
    run.loss[first:] += jump * np.exp(-after / (steps / 3.0))

    def show(sheet: Sheet, log: JobLog) -> None:
        grad = 0.85 + run.rng.normal(0, 0.02, run.spec.steps)
        grad[first : first + 3] = [6.0, 3.1, 1.4]
        sheet.scalar("learning_raw_grad_norm", np.round(grad, 4))
        sheet.scalar("learning_loss", np.round(run.loss + run.rng.normal(0, 0.01, run.spec.steps), 3))

    return show
