"""Runs that stop without an error: one host (or all) waits for something that never comes."""

from __future__ import annotations

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing, only
from trackwalker.lab.faults.shapes import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


@fault
def hang(run: Run, at: Place, silent_s: float) -> Show:
    """All ranks wait in a collective that does not end."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s
    return nothing


@fault
def data_hang(run: Run, at: Place, silent_s: float) -> Show:
    """The next batch never comes: steps stop, GPUs idle, processes live."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s
    run.batch_never_comes = True

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.work_end
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end)
        sheet.add("hw_procs_running", -9.0, since, run.end)

    return show


@fault
def feed_gone(run: Run, at: Place, silent_s: float, text: str, every_s: float = 240.0) -> Show:
    """The data service is gone: all loaders wait and retry, the GPUs have nothing to do, nobody dies."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)
    run.batch_never_comes = True

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.work_end + 1.0
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end)
        sheet.scale("hw_gpu_clock_mhz", 0.2, since, run.end)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end)
        sheet.add("hw_procs_running", -9.0, since, run.end)
        for number in range(1, int(silent_s // every_s)):
            for rank, name in enumerate(run.hosts):
                moment = since + number * every_s + float(run.rng.uniform(0, 20.0))
                log.say(moment, filled(run, text, name, moment), rank)

    return show


@fault
def keeps_working(run: Run, host: Hosts) -> Show:
    """One host goes on computing while the others wait for it."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            more = run.profile.active_w - run.profile.spin_w
            sheet.add("hw_gpu_power_watts", more, run.work_end, run.end, name)

    return show


@fault
def host_stuck(run: Run, host: Hosts, at: Place, silent_s: float, blocked: float = 0.0, pressure: float = 0.0) -> Show:
    """One host never comes to the next collective: its GPUs have nothing to do, all others spin and wait for it."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.work_end
        for name in many(host):
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end, name)
            sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
            sheet.add("hw_procs_running", -9.0, since, run.end, name)
            sheet.add("hw_procs_blocked", blocked, since, run.end, name)
            sheet.add("hw_io_pressure_full_pct", pressure, since, run.end, name)
            sheet.add("hw_io_pressure_some_pct", 1.1 * pressure, since, run.end, name)

    return show


@fault
def one_gpu_absent(run: Run, host: Hosts, gpu: int, at: Place, silent_s: float) -> Show:
    """One GPU never starts the next collective (its launching thread is stuck): it idles, all others spin for it."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.work_end + 1.0
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end, name, gpu=str(gpu))
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name, GpuIndex=str(gpu))

    return show


@fault
def nfs_mount_stuck(
    run: Run, host: Hosts, at: Place, silent_s: float, text: str = "", warn_every: float = 180.0
) -> Show:
    """One host's NFS mount answers no more: its loader sleeps in the kernel, its GPUs idle, all others spin."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, p = only(host), run.work_end + 2.0, run.profile
        sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.scale("hw_gpu_clock_mhz", 0.15, since, run.end, name)
        sheet.add("hw_procs_running", -9.0, since, run.end, name)
        sheet.add("hw_procs_blocked", 19.0, since, run.end, name)
        sheet.add("hw_io_pressure_full_pct", 55.0, since + 20.0, run.end, name)
        sheet.add("hw_io_pressure_some_pct", 66.0, since + 20.0, run.end, name)
        for number in range(1, int(silent_s // warn_every) if text else 0):
            moment = since + number * warn_every
            log.say(moment, filled(run, text, name, moment), run.hosts.index(name))

    return show


@fault
def blocked_reader(run: Run, host: Hosts, at: Place, silent_s: float) -> Show:
    """One host's reader never returns: its GPUs have nothing to do, everybody else waits in the next collective."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.work_end + 2.0
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.scale("hw_gpu_clock_mhz", 0.2, since, run.end, name)
        sheet.add("hw_procs_blocked", 24.0, since, run.end, name)
        sheet.add("hw_io_pressure_full_pct", 62.0, since, run.end, name)
        sheet.add("hw_io_pressure_some_pct", 71.0, since, run.end, name)
        sheet.add("hw_procs_running", -8.0, since, run.end, name)

    return show


@fault
def stuck_reader(run: Run, host: Hosts, at: Place, silent_s: float) -> Show:
    """One host's readers block in the kernel: its GPUs idle without a batch, all others spin in the collective."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.work_end
        for name in many(host):
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end, name)
            sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
            sheet.add("hw_procs_running", -9.0, since, run.end, name)
            sheet.add("hw_procs_blocked", 16.0, since, run.end, name)
            sheet.add("hw_io_pressure_full_pct", 78.0, since + 30.0, run.end, name)
            sheet.add("hw_io_pressure_some_pct", 90.0, since + 30.0, run.end, name)

    return show


@fault
def fuse_mount_stuck(run: Run, hosts: Hosts, at: Place, silent_s: float, blocked: float = 28.0) -> Show:
    """The user-space mount of the data set answers no more on some hosts: readers sleep, GPUs there have no work."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, p = run.work_end + 3.0, run.profile
        for name in many(hosts):
            sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
            sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
            sheet.scale("hw_gpu_clock_mhz", 0.1, since, run.end, name)
            sheet.add("hw_procs_running", -9.0, since, run.end, name)
            sheet.add("hw_procs_blocked", blocked, since, run.end, name)

    return show


@fault
def loader_deadlock(run: Run, host: Hosts, at: Place, silent_s: float, mine: str, others: str) -> Show:
    """One host's loader workers deadlock: its GPUs have nothing to do, all others spin; somebody asks for stacks."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, p = only(host), run.work_end + 2.0, run.profile
        sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.scale("hw_gpu_clock_mhz", 0.12, since, run.end, name)
        sheet.add("hw_procs_running", -9.0, since, run.end, name)
        asked = since + 0.7 * silent_s
        for rank, other in enumerate(run.hosts):
            moment = asked + float(run.rng.uniform(0.0, 2.0))
            log.say(moment, filled(run, mine if other == name else others, other, moment), rank)

    return show


@fault
def reader_asleep(run: Run, host: Hosts, at: Place, silent_s: float, text: str = "", every_s: float = 120.0) -> Show:
    """One host's reads never return: its loader sleeps, its GPUs idle without a kernel, all others spin for it."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, p = only(host), run.work_end + 1.5, run.profile
        sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.add("hw_procs_running", -8.0, since, run.end, name)
        sheet.add("hw_procs_blocked", 14.0, since, run.end, name)
        sheet.add("hw_io_pressure_full_pct", 48.0, since + 15.0, run.end, name)
        sheet.add("hw_io_pressure_some_pct", 57.0, since + 15.0, run.end, name)
        for number in range(1, 6 if text else 0):
            moment = since + number * every_s
            if moment < run.end - 10.0:
                log.say(moment, filled(run, text, name, moment), run.hosts.index(name))

    return show


@fault
def fork_deadlock(run: Run, host: Hosts, at: Place, silent_s: float, text: str, every_s: float = 300.0) -> Show:
    """The loader of one host waits for a lock that died with a forked thread: its GPUs idle, the others spin."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, p = only(host), run.work_end + 3.0, run.profile
        sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.scale("hw_gpu_clock_mhz", 0.12, since, run.end, name)
        sheet.scale("hw_procs_running", 0.15, since, run.end, name)
        for number in range(1, int(silent_s // every_s)):
            moment = since + number * every_s
            said = text.replace("{waited}", f"{number * every_s:.0f}")
            log.say(moment, filled(run, said, name, moment), run.hosts.index(name))

    return show


@fault
def watchdogs(run: Run, at: Place, text: str, waited_s: float = 600.0) -> Show:
    """All ranks wait in the same collective until every watchdog's time is over and takes its process down."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, waited_s + 45.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        for rank, name in enumerate(run.hosts):
            moment = run.work_end + waited_s + float(run.rng.uniform(0.0, 1.8))
            over = int(waited_s * 1000) + int(run.rng.integers(3, 99))
            log.say(moment, filled(run, text.replace("{ran}", str(over)), name, moment), rank)
            log.exits[rank] = 134
            sheet.process_gone(name, moment + 8.0)

    return show


@fault
def odd_collective(run: Run, host: Hosts, at: Place, odd: str, others: str) -> Show:
    """One rank enters another collective than all others; the wrapper that compares them says so everywhere."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 45.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        guilty = run.hosts.index(only(host))
        for rank, name in enumerate(run.hosts):
            moment = run.work_end + 9.0 + float(run.rng.uniform(0.0, 0.9))
            said = (odd if rank == guilty else others).replace("{odd_grank}", str(guilty * run.spec.gpus + 3))
            log.say(moment, filled(run, said, name, moment), rank)
            log.exits[rank] = 1
            sheet.process_gone(name, moment + 5.0)

    return show
