"""Fabrics that are full: other tenants, lost spines, senders that are not controlled."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, ends_at, fault, many, only
from trackwalker.lab.faults.shapes import window_starts
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


@fault
def congestion(
    run: Run, factor: float, begin: Place, end: Place = 1.0, cnp: float = 4000.0, share: float = 1.0
) -> Show:
    """The fabric is congested: notifications everywhere, nobody stands out."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    hit = run.hosts[: max(1, round(share * len(run.hosts)))]
    weights = run.rng.uniform(0.7, 1.3, len(hit))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for host, weight in zip(hit, weights, strict=True):
            for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.9), ("rx_ecn_pkts", 2.2)):
                sheet.rate(f"hw_rdma_{metric}_total", cnp * much * weight, since, until, host)

    return show


@fault
def mild_cnp(run: Run, hosts: Hosts, per_s: float = 60.0) -> Show:
    """Some congestion notifications on some hosts, from the beginning."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for host in many(hosts):
            sheet.rate("hw_rdma_rx_cnp_pkts_total", per_s, run.steps_from, run.end, host)

    return show


@fault
def uncontrolled(run: Run, host: Hosts, factor: float, enabled: int = 3, begin: Place = 0) -> Show:
    """A host's NICs send without congestion control: it is told to slow down, does not, and loses packets."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(first)
        said = f"WARNING: {name} | [CHECK_DCQCN] {enabled} enabled (expected 8)"
        log.say(run.start + 31.0, said, run.hosts.index(name))
        for device in range(enabled, 8):
            port = f"{run.spec.nic}_{device}"
            for metric, much in (("rx_cnp_pkts", 2600.0), ("tx_retx_pkts", 120.0), ("ccl_tx_retx_pkts", 110.0)):
                sheet.rate(f"hw_rdma_{metric}_total", much, since, run.work_end, name, device=port)

    return show


@fault
def no_dcqcn(run: Run, hosts: Hosts, factor: float, enabled: int = 0) -> Show:
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
def incast(run: Run, factor: float, begin: Place, end: Place, every: int, steps: int, cnp: float = 3000.0) -> Show:
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
def tenant_congestion_waves(
    run: Run, factor: float, waves: int, steps: int, begin: Place, end: Place = 0.97, cnp: float = 3000.0
) -> Show:
    """Another tenant's traffic comes and goes on the spine: all hosts are told to slow down, then not."""
    starts = np.linspace(run.at(begin), run.at(end) - steps, waves).astype(int).tolist()
    for s in starts:
        run.slow(s, s + steps, factor * run.rng.uniform(0.96, 1.04, min(steps, run.first + run.spec.steps - s)))
    weights = run.rng.uniform(0.75, 1.25, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            for host, weight in zip(run.hosts, weights, strict=True):
                for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.95), ("rx_ecn_pkts", 2.4)):
                    sheet.rate(f"hw_rdma_{metric}_total", cnp * much * float(weight), since, until, host)

    return show


@fault
def neighbour_job(run: Run, factor: float, begin: Place, end: Place = 1.0, cnp: float = 1500.0) -> Show:
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
def lossy_fabric(
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
def spine_lost(run: Run, factor: float, begin: Place, cnp: float = 3000.0, retx: float = 3.0) -> Show:
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
def congested_rail(run: Run, factor: float, begin: Place, end: Place = 1.0, rail: int = 5, cnp: float = 6000.0) -> Show:
    """The leaf switch of one rail is overloaded: that NIC of every host is told to slow down, the other rails not."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor * run.rng.uniform(0.985, 1.015, max(0, min(last, run.at(1.0)) - first)))
    weights = run.rng.uniform(0.75, 1.25, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, port = run.time_of(first), run.time_of(last), f"{run.spec.nic}_{rail}"
        for host, weight in zip(run.hosts, weights, strict=True):
            for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.93), ("rx_ecn_pkts", 2.3)):
                sheet.rate(f"hw_rdma_{metric}_total", cnp * much * float(weight), since, until, host, device=port)

    return show


@fault
def spine_tide(run: Run, factor: float, begin: Place, end: Place, cnp: float = 2600.0, tides: int = 1) -> Show:
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
def congestion_waves(
    run: Run, factor: float, begin: Place, waves: int, steps: int, end: Place = 1.0, cnp: float = 2500.0
) -> Show:
    """Another tenant's job loads the spine now and then: all NICs get notifications at the same times."""
    starts = window_starts(run, begin, end, waves, steps)
    for s in starts:
        run.slow(s, s + steps, 1.0 + (factor - 1.0) * float(run.rng.uniform(0.85, 1.15)))
    weights = run.rng.uniform(0.6, 1.4, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            for host, weight in zip(run.hosts, weights, strict=True):
                for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.95), ("rx_ecn_pkts", 2.0)):
                    sheet.rate(f"hw_rdma_{metric}_total", cnp * much * float(weight) / 8.0, since, until, host)

    return show


@fault
def reroute_blip(run: Run, at: Place, seconds: float = 25.0) -> Show:
    """A spine switch restarts: for half a minute all hosts time out and send again, then the routes are new."""
    step = run.at(at)
    run.extra[step - run.first] += seconds

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(step) + 1.0
        for host in run.hosts:
            much = float(run.rng.uniform(40.0, 90.0))
            for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.9), ("tx_ack_timeout", 0.05)):
                sheet.rate(f"hw_rdma_{metric}_total", much * share, since, since + seconds, host)

    return show


@fault
def congestion_walk(run: Run, factor: float, begin: Place, end: Place = 1.0, cnp: float = 2400.0) -> Show:
    """Other tenants load the spine, now more, now less: all NICs are told to slow down, each by its own share."""
    first, last, n = run.at(begin) - run.first, run.at(end) - run.first, run.spec.steps
    strength, level = np.zeros(n), 0.8
    for i in range(first, min(last, n)):
        level = float(np.clip(level + run.rng.normal(0, 0.09), 0.35, 1.15))
        strength[i] = level
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)
    weights = run.rng.uniform(0.65, 1.35, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        shape = by_step(run, strength)
        for name, weight in zip(run.hosts, weights.tolist(), strict=True):
            for metric, part in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.94), ("rx_ecn_pkts", 2.3)):
                sheet.rate(
                    f"hw_rdma_{metric}_total", cnp * part * weight, run.steps_from, run.work_end, name, shape=shape
                )

    return show


@fault
def spine_fills(run: Run, factor: float, begin: Place, over: float = 0.4, cnp: float = 700.0) -> Show:
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
def neighbour_hours(
    run: Run, factor: float, windows: list[list[float]], cnp: float = 3300.0, retx: float = 0.0
) -> Show:
    """A neighbour's large job shares the spines at its hours: all NICs are told to slow down, none stands out."""
    places = [(run.at(float(a)), min(run.at(float(b)), run.at(1.0))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor * run.rng.uniform(0.96, 1.04, max(0, b - a)))
    weights = run.rng.uniform(0.7, 1.35, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b in places:
            since, until = run.time_of(a), ends_at(run, b)
            for host, weight in zip(run.hosts, weights.tolist(), strict=True):
                for metric, part in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.91), ("rx_ecn_pkts", 2.5)):
                    sheet.rate(f"hw_rdma_{metric}_total", cnp * part * weight, since, until, host)
                if retx:
                    sheet.rate("hw_rdma_tx_retx_pkts_total", retx * weight, since, until, host)

    return show


@fault
def allreduce_bursts(run: Run, factor: float, begin: Place, bursts: int, steps: int, cnp: float = 2500.0) -> Show:
    """Other jobs share the spine now and then: all NICs are marked at once, each such step is long."""
    starts = np.linspace(run.at(begin), run.at(1.0) - steps - 1, bursts).astype(int).tolist()
    for s in starts:
        run.slow(s, s + steps, factor * run.rng.uniform(0.96, 1.05, min(steps, run.at(1.0) - s)))
    weights = run.rng.uniform(0.7, 1.35, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), ends_at(run, s + steps)
            for name, weight in zip(run.hosts, weights.tolist(), strict=True):
                for metric, part in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.9), ("rx_ecn_pkts", 2.3)):
                    sheet.rate(f"hw_rdma_{metric}_total", cnp * part * weight, since, until, name)

    return show
