"""Slow by the network: NICs, links, the fabric."""

from __future__ import annotations

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


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
