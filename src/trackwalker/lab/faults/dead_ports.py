"""Ports that lose their link: for a while, again and again, for good."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import FLOWS, Hosts, Place, Show, fault, many, only, port_dark
from trackwalker.lab.faults.shapes import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


@fault
def link_down(run: Run, host: Hosts, factor: float, begin: Place, device: int = 2) -> Show:
    """A port goes down; its traffic moves to the others."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for name in many(host):
            port = f"{run.spec.nic}_{device}"
            sheet.put("hw_rdma_port_state", 0, since, run.end, name, device=port)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, run.end, name, device=port)

    return show


@fault
def port_out(run: Run, host: Hosts, factor: float, begin: Place, device: int, text: str = "") -> Show:
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
def port_dies_at_end(run: Run, host: Hosts, device: int, retried_s: float = 25.0) -> Show:
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
def port_dies_in_last_step(run: Run, host: Hosts, device: int, after_s: float = 5.0) -> Show:
    """A port loses its link in the middle of the last step; what was to go over it is retried in vain."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.work_end + after_s
        sheet.put("hw_rdma_port_state", 0.0, since, run.end, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 6.0, since, since + 40.0, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 8.0, since + 34.0, name, device=port)
        for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, run.end, name, device=port)

    return show


@fault
def ports_in_turn(run: Run, host: Hosts, devices: list[int], factors: list[float], begins: list[float]) -> Show:
    """Ports of a host lose their link one after the other (a failing switch module); the rest carries their load."""
    places = [run.at(float(b)) for b in begins]
    for place, factor in zip(places, factors, strict=True):
        run.slow(place, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        for number, (place, device) in enumerate(zip(places, devices, strict=True)):
            since = run.time_of(place) + 2.0
            until = run.time_of(places[number + 1]) + 2.0 if number + 1 < len(places) else run.end
            port = f"{run.spec.nic}_{device}"
            sheet.put("hw_rdma_port_state", 0.0, since, run.end, name, device=port)
            down = devices[: number + 1]
            for metric in FLOWS:
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, run.end, name, device=port)
                for other in range(8):
                    if other not in down:
                        much = 8 / (8 - len(down))
                        sheet.scale(
                            f"hw_rdma_{metric}_total", much, since, until, name, device=f"{run.spec.nic}_{other}"
                        )

    return show


@fault
def leaf_out(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place, device: int = 4) -> Show:
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
def port_returns(
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
def port_dies_after_last_step(run: Run, host: Hosts, device: int) -> Show:
    """A port loses its link after the last step; the retries of its queue pairs run out."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.work_end + 2.0
        sheet.put("hw_rdma_port_state", 0.0, since, run.end + 60.0, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 6.0, since, since + 22.0, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 8.0, since + 16.0, name, device=port)

    return show


@fault
def port_away(run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0, device: int = 3) -> Show:
    """A port is down for a part of the run; the other ports of its host carry its traffic meanwhile."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.end if last >= run.at(1.0) else run.time_of(last)
        port_dark(run, sheet, only(host), device, since, until)

    return show


@fault
def port_lost(run: Run, host: Hosts, device: int, retried_s: float = 30.0) -> Show:
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
def flaps_then_dead(
    run: Run, host: Hosts, factor: float, flaps: list[float], dead: Place, device: int = 1, away_s: float = 70.0
) -> Show:
    """A port loses its link for a minute now and then, and at last for good; its siblings carry the traffic."""
    steps = [run.at(float(f)) for f in flaps]
    for s in steps:
        run.extra[s - run.first] += away_s * 0.3
    last = run.at(dead)
    run.slow(last, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        spans = [(run.time_of(s) + 3.0, run.time_of(s) + 3.0 + away_s) for s in steps]
        spans.append((run.time_of(last) + 1.0, run.end))
        for since, until in spans:
            port_dark(run, sheet, name, device, since, until)

    return show


@fault
def port_dead(run: Run, host: Hosts, factor: float, device: int = 2) -> Show:
    """A port had no link before the job began; the other ports of its host carry its traffic all the time."""
    run.slow(run.first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port = only(host), f"{run.spec.nic}_{device}"
        sheet.put("hw_rdma_port_state", 0.0, run.start - 600.0, run.end + 600.0, name, device=port)
        for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, run.start - 600.0, run.end + 600.0, name, device=port)
            for other in range(8):
                if other != device:
                    where = f"{run.spec.nic}_{other}"
                    sheet.scale(f"hw_rdma_{metric}_total", 8 / 7, run.start, run.end, name, device=where)

    return show


@fault
def flapping_port(
    run: Run, host: Hosts, victims: Hosts, factor: float, times: int, begin: Place, end: Place = 1.0, device: int = 4
) -> Show:
    """A port goes down and comes back again and again; who sends to it retransmits, the port itself hardly."""
    starts = np.linspace(run.at(begin), run.at(end) - 4, times).astype(int).tolist()
    for s in starts:
        run.slow(s, s + 3, factor * float(run.rng.uniform(0.95, 1.05)))

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port = only(host), f"{run.spec.nic}_{device}"
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + 3)
            sheet.put("hw_rdma_port_state", 0.0, since, until - 10.0, name, device=port)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, until - 10.0, name, device=port)
            for victim in many(victims):
                much = 700.0 * float(run.rng.uniform(0.6, 1.4))
                sheet.rate("hw_rdma_tx_retx_pkts_total", much, since, until, victim, device=port)
                sheet.rate("hw_rdma_tx_ack_timeout_total", 0.01 * much, since, until, victim, device=port)

    return show


@fault
def port_down(run: Run, host: Hosts, factor: float, begin: Place, device: int, text: str = "") -> Show:
    """A port loses its link for good; its siblings carry the traffic of eight."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(first)
        port_dark(run, sheet, name, device, since, run.end + 60.0)
        if text:
            log.say(since + 1.0, filled(run, text, name, since + 1.0), run.hosts.index(name))

    return show


@fault
def port_dies_without_failover(run: Run, host: Hosts, device: int, retried_s: float = 20.0) -> Show:
    """A port loses its link in the last step and nothing takes over: its queue pairs retry until they may not."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.work_end + 2.5
        sheet.put("hw_rdma_port_state", 0.0, since, run.end + 60.0, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 4.0, since, since + retried_s, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 7.0, since + retried_s - 3.0, name, device=port)

    return show


@fault
def port_fails(run: Run, host: Hosts, device: int) -> Show:
    """A port loses its link just after the last step and stays dark; what was in flight is retried in vain."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.work_end + 1.0
        sheet.put("hw_rdma_port_state", 0.0, since, run.end + 60.0, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 9.0, since, since + 24.0, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 5.0, since + 20.0, name, device=port)

    return show
