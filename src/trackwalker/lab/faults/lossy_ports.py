"""Ports and cables that lose packets, a little or ever more."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import FLOWS, Hosts, Place, Show, by_step, ends_at, fault, many, only
from trackwalker.lab.faults.shapes import filled, grown_by_step, grown_factors, grown_in_time, slows_until
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _levels(run: Run, first: int, last: int, spread: float) -> Floats:
    """A strength for each step: about 1 inside [first, last), never the same twice, 0 outside."""
    index = np.arange(run.spec.steps) + run.first
    rough = np.clip(run.rng.lognormal(0.0, spread, run.spec.steps), 0.4, 1.9)
    return np.where((index >= first) & (index < last), rough, 0.0)


@fault
def nic(
    run: Run,
    hosts: Hosts,
    factor: float,
    begin: Place = 0,
    end: Place = 1.0,
    device: int = 3,
    retx: float = 900.0,
    exhausted: int = 0,
) -> Show:
    """NICs retransmit: every collective waits for them."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for host in many(hosts):
            port = f"{run.spec.nic}_{device}"
            for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.95), ("tx_ack_timeout", 0.004)):
                sheet.rate(f"hw_rdma_{metric}_total", retx * share, since, until, host, device=port)
            if exhausted:
                sheet.rate(
                    "hw_rdma_req_tx_retry_excd_err_total", exhausted / (until - since), since, until, host, device=port
                )

    return show


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
def ageing_lasers(
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
            port, shape = f"{run.spec.nic}_{device}", by_step(run, grown)
            much = retx * float(run.rng.uniform(0.8, 1.3))
            for metric, part in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.96), ("tx_ack_timeout", 0.006)):
                per_s = much * part
                sheet.rate(
                    f"hw_rdma_{metric}_total", per_s, run.steps_from, run.work_end, name, shape=shape, device=port
                )

    return show


@fault
def optic_decay(
    run: Run, host: Hosts, factor: float, begin: Place, device: int = 5, retx: float = 1800.0, power: float = 1.4
) -> Show:
    """A transceiver ages: bit errors become lost packets, more from hour to hour, and every step waits longer."""
    first = run.at(begin)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * grown_by_step(run, first, run.at(1.0), power))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, port = run.time_of(first), f"{run.spec.nic}_{device}"
        shape = grown_in_time(since, run.work_end, power)
        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
            sheet.rate(
                f"hw_rdma_{metric}_total", retx * share, since, run.work_end, only(host), shape=shape, device=port
            )

    return show


@fault
def old_retx(run: Run, host: Hosts, retx: float = 20e6, device: int = 1) -> Show:
    """A NIC whose retransmits were many before the job began, and none since."""

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.lifetime("hw_rdma_tx_retx_pkts_total", only(host), retx, f"{run.spec.nic}_{device}")

    return show


@fault
def unsteady_port(
    run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0, device: int = 1, retx: float = 600.0
) -> Show:
    """A marginal cable: one port loses packets, in some steps many, in others few, and the steps follow it."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    strength = run.rng.gamma(4.0, 0.25, max(1, last - first)).clip(0.25, 2.2)
    run.slow(first, last, 1.0 + (factor - 1.0) * strength[: last - first])

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, port = run.time_of(first), ends_at(run, last), f"{run.spec.nic}_{device}"
        a = first - run.first

        def follows(t: Floats) -> Floats:
            index = np.clip(np.searchsorted(run.planned, t) - a, 0, len(strength) - 1)
            return strength[index] / 2.2

        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.007)):
            sheet.rate(
                f"hw_rdma_{metric}_total", 2.2 * retx * share, since, until, only(host), shape=follows, device=port
            )

    return show


@fault
def two_ports(
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
def background_retx(run: Run, most: float = 4.0, share: float = 1.0) -> Show:
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
def warm_optic(
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
def half_rate(
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
def fading_optic(
    run: Run, host: Hosts, factor: float, begin: Place, over: float = 0.5, device: int = 5, retx: float = 1100.0
) -> Show:
    """A transceiver gets dirtier or older: a port loses more and more packets, the steps get longer with it."""
    first, last = run.at(begin), run.at(1.0)
    run.slow(first, last, grown_factors(run, first, last, factor, over))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.work_end
        grows = ramp(
            since, max(60.0, run.time_of(run.at(min(1.0, (first - run.first) / run.spec.steps + over))) - since)
        )
        port = f"{run.spec.nic}_{device}"
        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.008)):
            sheet.rate(f"hw_rdma_{metric}_total", retx * share, since, until, only(host), shape=grows, device=port)

    return show


@fault
def loose_connector(
    run: Run, host: Hosts, factor: float, begin: Place, device: int = 6, retx: float = 1300.0, share: float = 0.45
) -> Show:
    """A connector sits badly: for some steps packets are lost, more or fewer, then none for a while, without rhythm."""
    first, n = run.at(begin) - run.first, run.spec.steps
    strength, i, bad = np.zeros(n), first, True
    while i < n:
        length = int(run.rng.integers(6, 22)) if bad else int(run.rng.integers(6, 22) * (1 - share) / share)
        if bad:
            strength[i : i + length] = run.rng.uniform(0.5, 1.0)
        i, bad = i + max(2, length), not bad
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        port, shape = f"{run.spec.nic}_{device}", by_step(run, strength)
        for metric, part in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
            sheet.rate(
                f"hw_rdma_{metric}_total",
                retx * part,
                run.steps_from,
                run.work_end,
                only(host),
                shape=shape,
                device=port,
            )

    return show


@fault
def wearing_link(run: Run, host: Hosts, factor: float, begin: Place, device: int = 3, retx: float = 2200.0) -> Show:
    """An optic fades: bit errors, so retransmits, grow from `begin` to the end, and every step with them."""
    first, _ = slows_until(run, begin, 1.0, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, port = run.time_of(first), only(host), f"{run.spec.nic}_{device}"
        grown = ramp(since - 120.0, run.work_end - since)
        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
            sheet.rate(f"hw_rdma_{metric}_total", retx * share, since - 120.0, run.end, name, shape=grown, device=port)

    return show


@fault
def host_nics(run: Run, host: Hosts, factor: float, retx: float = 160.0, begin: Place = 0) -> Show:
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
def bad_lane(run: Run, host: Hosts, factor: float, begin: Place, device: int = 1, timeouts: float = 5.0) -> Show:
    """A lane with errors: sends of one port wait for their acknowledgement and go again, in some stretches none do."""
    first, n = run.at(begin) - run.first, run.spec.steps
    strength, level, calm = np.zeros(n), 0.8, 0
    for i in range(first, n):
        if calm == 0 and run.rng.random() < 0.03:
            calm = int(run.rng.integers(5, 14))
        level = float(np.clip(level + run.rng.normal(0, 0.08), 0.55, 1.15))
        strength[i] = 0.0 if calm else level
        calm = max(0, calm - 1)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        port, shape = f"{run.spec.nic}_{device}", by_step(run, strength)
        parts = (("tx_ack_timeout", 1.0), ("tx_retx_pkts", 210.0), ("ccl_tx_retx_pkts", 195.0))
        for metric, part in parts:
            name = f"hw_rdma_{metric}_total"
            sheet.rate(name, timeouts * part, run.steps_from, run.work_end, only(host), shape=shape, device=port)

    return show


@fault
def dirty_cable(
    run: Run, host: Hosts, factor: float, begin: Place, share: float = 0.4, device: int = 6, retx: float = 1300.0
) -> Show:
    """A cable with dirty ends loses frames in spells of a few steps that come at random."""
    first, n = run.at(begin) - run.first, run.spec.steps
    strength = np.zeros(n)
    i = first
    while i < n:
        long = int(run.rng.integers(2, 7))
        if run.rng.uniform() < share:
            strength[i : i + long] = float(run.rng.uniform(0.6, 1.1))
        i += long
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        port, shape, since = f"{run.spec.nic}_{device}", by_step(run, strength), run.time_of(run.at(begin))
        for metric, part in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
            name = f"hw_rdma_{metric}_total"
            sheet.rate(name, retx * part, since, run.work_end, only(host), shape=shape, device=port)

    return show


@fault
def rough_link(
    run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, device: int = 1, retx: float = 700.0
) -> Show:
    """Links with symbol errors: how much is sent again, and how long a step takes, changes with every step."""
    strength = _levels(run, run.at(begin), run.at(end), 0.3)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        shape = by_step(run, strength)
        for number, name in enumerate(many(hosts)):
            port, mine = f"{run.spec.nic}_{(device + 3 * number) % 8}", retx * float(run.rng.uniform(0.7, 1.3))
            for metric, part in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
                rises = f"hw_rdma_{metric}_total"
                sheet.rate(rises, mine * part, run.steps_from, run.work_end, name, shape=shape, device=port)

    return show
