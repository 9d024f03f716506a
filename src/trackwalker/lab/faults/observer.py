"""The observer itself fails; training goes on."""

from __future__ import annotations

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


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
def driver_reporting(run: Run, host: Hosts, begin: Place) -> Show:
    """The driver's error reporting hangs: monitoring suffers, training does not."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        since = run.time_of(run.at(begin))
        sheet.add("hw_dmesg_gpu_errors_total", 7.0, since, run.end, name)
        sheet.add("hw_scrape_duration_seconds", 9.7, since, run.end, name)

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
