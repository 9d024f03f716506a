"""Other programs on the CPUs that ranks need."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, ends_at, fault, many, only
from trackwalker.lab.faults.shapes import window_starts
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


@fault
def cpu_hog(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, procs: float = 64.0) -> Show:
    """Another program takes the CPUs of some hosts."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for host in many(hosts):
            sheet.add("hw_procs_running", procs, since, until, host)
            sheet.scale("hw_context_switches_total", 2.0, since, until, host)

    return show


@fault
def thread_leak(run: Run, procs: float = 17.0, factor: float = 1.0103) -> Show:
    """Polling threads left behind by a restore: a little slower from the first step, the same on all hosts."""
    run.slow(run.first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.add("hw_procs_running", procs, run.steps_from, run.work_end)

    return show


@fault
def backup_windows(run: Run, hosts: Hosts, factor: float, windows: list[list[float]], procs: float = 72.0) -> Show:
    """Compressing backups run on some nodes in some windows: many runnable processes; all others wait for them."""
    places = [(run.at(float(a)), min(run.at(float(b)), run.at(1.0))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor * run.rng.uniform(0.97, 1.03, max(0, b - a)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b in places:
            since, until = run.time_of(a), run.time_of(b)
            for name in many(hosts):
                sheet.add("hw_procs_running", procs * float(run.rng.uniform(0.85, 1.2)), since, until, name)
                sheet.scale("hw_context_switches_total", 2.3, since, until, name)
                sheet.add("ray_node_cpu_utilization", 43.0, since, until, name)

    return show


@fault
def cron_hog_on_hosts(
    run: Run, hosts: Hosts, factor: float, starts: list[float], steps: int, procs: float = 90.0
) -> Show:
    """A scheduled job of the operating system takes the CPUs of some hosts every so often."""
    places = [run.at(s) for s in starts]
    for s in places:
        run.slow(s, s + steps, factor * float(run.rng.uniform(0.97, 1.03)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in places:
            since, until = run.time_of(s), run.time_of(s + steps)
            for name in many(hosts):
                sheet.add("hw_procs_running", procs * float(run.rng.uniform(0.9, 1.1)), since, until, name)
                sheet.scale("hw_context_switches_total", 2.6, since, until, name)
                sheet.add("ray_node_cpu_utilization", 52.0, since, until, name)

    return show


@fault
def agent_creep(run: Run, hosts: Hosts, factor: float, begin: Place, over: float = 0.3, procs: float = 110.0) -> Show:
    """A node agent on some hosts starts ever more busy threads: runnable tasks pile up, the trainer's threads wait."""
    first, n = run.at(begin), run.spec.steps
    index = np.arange(n) + run.first
    grown = 1.0 + (factor - 1.0) * np.clip((index - first) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, grown)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        length = max(60.0, run.time_of(first + round(over * n)) - since)
        for name in many(hosts):
            mine = procs * float(run.rng.uniform(0.85, 1.15))
            sheet.add("hw_procs_running", mine, since, run.end, name, shape=ramp(since, length))
            sheet.add("ray_node_cpu_utilization", 55.0, since, run.end, name, shape=ramp(since, length))
            sheet.scale("hw_context_switches_total", 2.2, since + 0.3 * length, run.end, name)

    return show


@fault
def upload_hog(run: Run, host: Hosts, factor: float, steps: int, procs: float = 80.0) -> Show:
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
def fork_pile(run: Run, host: Hosts, factor: float, begin: Place, every: int, most: float = 130.0) -> Show:
    """A health check that never ends is started each minute; the pile takes the CPUs until a restart clears it."""
    first, n = run.at(begin) - run.first, run.spec.steps
    index = np.arange(n)
    pile = np.where(index >= first, ((index - first) % every + 1) / every, 0.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * np.clip(1.35 * pile - 0.35, 0.0, 1.0))

    def show(sheet: Sheet, log: JobLog) -> None:
        shape = by_step(run, pile)
        since, name = run.time_of(run.at(begin)), only(host)
        sheet.add("hw_procs_running", most, since, run.work_end, name, shape=shape)
        sheet.add("ray_node_cpu_utilization", 62.0, since, run.work_end, name, shape=shape)
        sheet.scale("hw_context_switches_total", 2.6, since, run.work_end, name, shape=shape)

    return show


@fault
def busy_neighbour(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, procs: float = 70.0) -> Show:
    """Somebody's own processes got onto the nodes (a shared partition): they come, stay at work, and vary."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    run.slow(first, last, factor * run.rng.uniform(0.985, 1.02, max(0, last - first)))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.work_end if last >= run.at(1.0) else run.time_of(last)
        for name in many(hosts):
            phase, mine = float(run.rng.uniform(0, 6.28)), procs * float(run.rng.uniform(0.85, 1.15))

            def varies(t: Floats, phase: float = phase) -> Floats:
                return 0.82 + 0.18 * np.sin(0.013 * t + phase)

            sheet.add("hw_procs_running", mine, since, until, name, shape=varies)
            sheet.add("ray_node_cpu_utilization", 46.0, since, until, name, shape=varies)
            sheet.scale("hw_context_switches_total", 2.1, since, until, name)

    return show


@fault
def scan_windows(
    run: Run, factor: float, begin: Place, times: int, steps: int, procs: float = 45.0, hosts: Hosts | None = None
) -> Show:
    """A cron job (a security scan, an index of the disk) runs on the hosts at the same times and takes processors."""
    starts = window_starts(run, begin, 1.0, times, steps)
    for s in starts:
        run.slow(s, s + steps, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            for name in many(hosts) if hosts else run.hosts:
                mine = procs * float(run.rng.uniform(0.85, 1.15))
                sheet.add("hw_procs_running", mine, since, until, name)
                sheet.scale("hw_context_switches_total", 1.8, since, until, name)
                sheet.add("ray_node_cpu_utilization", 30.0, since, until, name)

    return show


@fault
def agent_rollout(
    run: Run, hosts: Hosts, begins: list[float], factors: list[float], procs: float = 75.0, end: Place = 1.0
) -> Show:
    """A new version of a node agent goes out to some hosts, one after the other, and spins on their processors."""
    names = many(hosts)
    firsts, last = [run.at(float(b)) for b in begins], run.at(end)
    for first, factor in zip(firsts, factors, strict=True):
        n = max(0, min(last, run.at(1.0)) - first)
        run.slow(first, first + n, 1.0 + (factor - 1.0) * run.rng.uniform(0.85, 1.15, n))

    def show(sheet: Sheet, log: JobLog) -> None:
        until = ends_at(run, last)
        for name, first in zip(names, firsts, strict=True):
            since, mine = run.time_of(first), procs * float(run.rng.uniform(0.85, 1.2))
            sheet.add("hw_procs_running", mine, since, until, name)
            sheet.scale("hw_context_switches_total", 2.6, since, until, name)
            sheet.add("ray_node_cpu_utilization", 44.0, since, until, name)

    return show


@fault
def cron_hog(run: Run, host: Hosts, factor: float, every: int, steps: int, begin: Place, procs: float = 90.0) -> Show:
    """A timer starts something heavy on one host again and again (a backup that compresses)."""
    starts = list(range(run.at(begin), run.at(1.0) - steps, every))
    for s in starts:
        run.slow(s, s + steps, factor * float(run.rng.uniform(0.98, 1.02)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            for s in starts:
                since, until = run.time_of(s), run.time_of(s + steps)
                sheet.add("hw_procs_running", procs, since, until, name)
                sheet.scale("hw_context_switches_total", 2.6, since, until, name)
                sheet.add("ray_node_cpu_utilization", 55.0, since, until, name)

    return show


@fault
def leftover_procs(run: Run, hosts: Hosts, factor: float, procs: float = 110.0, end: Place = 1.0) -> Show:
    """Processes of an earlier job were never cleaned up and still take the processors of some hosts."""
    last = run.at(end)
    run.slow(run.first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        until = run.end + 60.0 if last >= run.at(1.0) else run.time_of(last)
        for name in many(hosts):
            mine = procs * float(run.rng.uniform(0.9, 1.1))
            sheet.add("hw_procs_running", mine, run.start - 600.0, until, name)
            sheet.scale("hw_context_switches_total", 2.4, run.start - 600.0, until, name)
            sheet.add("ray_node_cpu_utilization", 48.0, run.start - 600.0, until, name)

    return show


@fault
def rolling_scan(run: Run, hosts: Hosts, factor: float, begin: Place, steps: int, procs: float = 85.0) -> Show:
    """A fleet tool visits some hosts one after the other and takes the processors of each for a while."""
    names, first = many(hosts), run.at(begin)
    starts = [first + number * (steps + 3) for number in range(len(names))]
    for s in starts:
        run.slow(s, s + steps, factor * float(run.rng.uniform(0.97, 1.03)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for name, s in zip(names, starts, strict=True):
            since, until = run.time_of(s), run.time_of(s + steps)
            sheet.add("hw_procs_running", procs * float(run.rng.uniform(0.85, 1.15)), since, until, name)
            sheet.scale("hw_context_switches_total", 2.1, since, until, name)
            sheet.add("ray_node_cpu_utilization", 46.0, since, until, name)

    return show


@fault
def scrub(run: Run, hosts: Hosts, factor: float, windows: list[list[float]], procs: float = 75.0) -> Show:
    """Something of the operating system (a scrub, an index) takes the processors of some nodes in some windows."""
    places = [(run.at(float(a)), min(run.at(float(b)), run.at(1.0))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, 1.0 + (factor - 1.0) * run.rng.uniform(0.8, 1.15, max(0, b - a)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b in places:
            since = run.time_of(a)
            until = run.work_end if b >= run.at(1.0) else run.time_of(b)
            for name in many(hosts):
                mine = procs * float(run.rng.uniform(0.85, 1.2))
                sheet.add("hw_procs_running", mine, since, until, name)
                sheet.add("ray_node_cpu_utilization", 55.0, since, until, name)
                sheet.scale("hw_context_switches_total", 2.3, since, until, name)

    return show


@fault
def orphans(run: Run, hosts: Hosts, factor: float, end: Place, procs: float = 84.0) -> Show:
    """Loader processes of the job before were never reaped and spin on the CPUs until somebody kills them."""
    last = run.at(end)
    n = max(0, last - run.first)
    run.slow(run.first, last, factor * run.rng.uniform(0.98, 1.02, n))

    def show(sheet: Sheet, log: JobLog) -> None:
        until = ends_at(run, last)
        for name in many(hosts):
            mine = procs * float(run.rng.uniform(0.9, 1.1))
            sheet.add("hw_procs_running", mine, run.start, until, name)
            sheet.add("ray_node_cpu_utilization", 48.0, run.start, until, name)
            sheet.scale("hw_context_switches_total", 1.8, run.start, until, name)

    return show


@fault
def scanner(run: Run, hosts: Hosts, factor: float, windows: list[list[float]], procs: float = 85.0) -> Show:
    """A security agent scans the file systems of some hosts in windows: many runnable threads, busy CPUs."""
    places = [(run.at(float(a)), min(run.at(float(b)), run.at(1.0))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor * run.rng.uniform(0.96, 1.05, max(0, b - a)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b in places:
            since, until = run.time_of(a), ends_at(run, b)
            for name in many(hosts):
                much = float(run.rng.uniform(0.85, 1.15))
                sheet.add("hw_procs_running", procs * much, since, until, name)
                sheet.add("ray_node_cpu_utilization", 48.0 * much, since, until, name)
                sheet.scale("hw_context_switches_total", 2.3, since, until, name)

    return show
