"""Trouble of the recording and of the kept logs, not of the run."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only, rewritten
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Floats, Run, make_hosts


def _pick(run: Run, device: int | None, gpu: int | None) -> dict[str, Any]:
    named: dict[str, Any] = {} if device is None else {"device": f"{run.spec.nic}_{device}"}
    return named | ({} if gpu is None else {"gpu": str(gpu)})


@fault
def ghost(run: Run, host: Hosts, begin: Place, end: Place = 1.0) -> Show:
    """An exporter repeats itself."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            sheet.freeze(name, run.time_of(run.at(begin)), run.end if end == 1.0 else run.time_of(run.at(end)))

    return show


@fault
def unscraped(run: Run, host: Hosts, begin: Place, end: Place) -> Show:
    """A host cannot be scraped for a while; training goes on."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            sheet.down(name, run.time_of(run.at(begin)), run.time_of(run.at(end)))

    return show


@fault
def not_exported(run: Run, metrics: list[str], host: Hosts | None = None) -> Show:
    """Metrics this cluster does not have."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for pattern in metrics:
            for name in many(host) if host else [None]:
                sheet.absent(pattern, name)

    return show


@fault
def database_ends(run: Run, at: Place) -> Show:
    """The database holds nothing after a moment."""

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.only_between(run.start, run.time_of(run.at(at)))

    return show


@fault
def database_begins(run: Run, hours: float) -> Show:
    """The database holds only the last hours of the job."""

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.only_between(run.end - 3600.0 * hours, run.end)

    return show


@fault
def worker_log_lost(run: Run, host: Hosts) -> Show:
    """Nothing of what a host's trainer wrote was kept; the launcher's own lines were."""

    def show(sheet: Sheet, log: JobLog) -> None:
        log.unheard |= {run.hosts.index(name) for name in many(host)}

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
def old_counters(run: Run, host: Hosts, retx: float = 90e6, ce: float = 40.0, gpu: int = 4) -> Show:
    """Counters that were high before the job began."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        sheet.lifetime("hw_rdma_tx_retx_pkts_total", name, retx, f"{run.spec.nic}_2")
        sheet.lifetime("hw_gpu_ras_umc_ce_total", name, ce, str(gpu))
        log.say(run.start + 56, f"{name}: GPU[{gpu}]: RAS INFO UMC CE={ce:.0f} UE=0", run.hosts.index(name))

    return show


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


@fault
def counter_reset(run: Run, host: Hosts, at: Place, retx: float = 90e6, device: int = 2) -> Show:
    """Somebody clears a NIC's statistics during the run: its counters begin at zero again."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port = only(host), f"{run.spec.nic}_{device}"
        sheet.lifetime("hw_rdma_tx_retx_pkts_total", name, retx, port)
        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.9), ("rx_dup_request", 0.7)):
            old = float(np.floor(retx * share))
            sheet.count(f"hw_rdma_{metric}_total", -old, run.time_of(run.at(at)), name, device=port)

    return show


@fault
def counter_jump(
    run: Run,
    metric: str,
    host: Hosts,
    at: Place,
    number: float = 1.0,
    gpu: int | None = None,
    device: int | None = None,
) -> Show:
    """A counter jumps once, a few seconds after a step began."""

    def show(sheet: Sheet, log: JobLog) -> None:
        pick: dict[str, Any] = {} if gpu is None else {"gpu": str(gpu)}
        if device is not None:
            pick["device"] = f"{run.spec.nic}_{device}"
        for name in many(host):
            sheet.count(metric, number, run.time_of(run.at(at)) + 4.0, name, **pick)

    return show


@fault
def stranger(run: Run, name: str, procs: float = 140.0, tcp: float = 900.0) -> Show:
    """A busy machine that is no part of the job (a login node) reports into the same database."""

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.strangers.append(name)
        sheet.absent("hw_gpu_*", name)
        sheet.process_gone(name, 0.0)
        sheet.add("hw_procs_running", procs, run.start, run.end, name)
        sheet.add("hw_io_pressure_full_pct", 45.0, run.start, run.end, name)
        sheet.rate("hw_tcp_retransmits_total", tcp, run.start, run.end, name)
        sheet.rate("hw_rdma_tx_retx_pkts_total", 3.0, run.start, run.end, name)

    return show


@fault
def flaky_exporters(run: Run, hosts: Hosts, begin: Place, end: Place) -> Show:
    """Exporters crash and are started again and again: minutes without an answer, then a few pages, each its own."""
    first, last = run.at(begin), run.at(end)

    def show(sheet: Sheet, log: JobLog) -> None:
        until = run.time_of(last)
        for name in many(hosts):
            time = run.time_of(first) + float(run.rng.uniform(0, 120))
            while time < until:
                away = float(run.rng.uniform(240, 480))
                sheet.down(name, time, min(time + away, until))
                time += away + float(run.rng.uniform(50, 130))

    return show


@fault
def scraper_down(run: Run, begin: Place, end: Place) -> Show:
    """Prometheus itself was away for a while: nothing of any host is stored, training goes on."""

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, before = run.time_of(run.at(begin)), run.time_of(run.at(end)), sheet.in_database

        def stored(times: Floats) -> Floats:
            kept = before(times)
            return kept[(kept < since) | (kept >= until)]

        sheet.in_database = stored  # type: ignore[method-assign]

    return show


@fault
def merged_log_ends(run: Run, at: Place) -> Show:
    """The merged log breaks off in the middle of a line; the ranks' own logs go on to the end."""

    def show(sheet: Sheet, log: JobLog) -> None:
        whole = log.write

        def broken(path: Path, workers: Path | None) -> None:
            whole(path, workers)
            text = path.read_text()
            last = text.find(f"completed step: {run.at(at)},")
            path.write_text(text[: last + 40])

        log.write = broken  # type: ignore[method-assign]

    return show


@fault
def log_begins(run: Run, at: Place) -> Show:
    """The beginning of the merged log was rotated away; the ranks' own logs are lost with it."""
    run.spec.worker_logs = False

    def change(text: str, _: Run) -> str:
        return text[text.find("\n", text.find(f"completed step: {run.at(at)},")) + 1 :]

    return rewritten(change)


@fault
def only_header(run: Run) -> Show:
    """The disk of the logs was full: the merged log holds what the launcher wrote first, and nothing else."""
    run.spec.worker_logs = False

    def change(text: str, _: Run) -> str:
        return text[: text.find("== Preflight BEGIN")]

    return rewritten(change)
