"""What the thirteenth author's held-out set (`af-`) needs beyond the rest."""

from __future__ import annotations

import re

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.faults.sets.fifth_set import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Run


@fault
def af_agent_creep(
    run: Run, hosts: Hosts, factor: float, begin: Place, over: float = 0.3, procs: float = 110.0
) -> Show:
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
def af_cold_storage_windows(run: Run, begin: Place, end: Place, factor: float) -> Show:
    """The file system of the data set is busy for a while: every host's readers block, GPUs idle in each step."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    run.await_data(first, last, 1.0 - 1.0 / factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, idle = run.time_of(first), run.time_of(last), 1.0 - 1.0 / factor
        sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)
        for name in run.hosts:
            much = float(run.rng.uniform(0.8, 1.2))
            sheet.add("hw_procs_blocked", 10.0 * much, since, until, name)
            sheet.add("hw_io_pressure_some_pct", 40.0 * much, since, until, name)
            sheet.add("hw_io_pressure_full_pct", 31.0 * much, since, until, name)

    return show


@fault
def af_console_then_gone(run: Run, host: Hosts, at: Place, text: str, silent_s: float = 400.0) -> Show:
    """A kernel complains on every terminal of its host, loads pile up for half a minute, then nobody answers there."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        rank, since = run.hosts.index(name), run.work_end + 6.0
        said = text.rstrip("\n").split("\n")
        for number, line in enumerate(said):
            moment = since + 11.0 * number
            log.say(moment, filled(run, line, name, moment), rank)
        sheet.add("hw_procs_running", 140.0, since, since + 50.0, name)
        sheet.gone(name, since + 11.0 * len(said) + 14.0)
        log.mute.add(rank)
        log.hide_workers.add(rank)
        log.exits[rank] = 0  # nobody is left there to report an exit

    return show


_LATER = re.compile(
    r"^(Config param |Attempting to initialize the jax|Jax distributed system|Memstats: |Synchronizing hosts|"
    r"No existing checkpoints found)|cuda_platform\.cc|NCCL WARN MSCCL\+\+"
)


@fault
def af_stops_early(run: Run) -> Show:
    """The trainer fails while it reads its arguments: nothing that comes later is printed."""

    def show(sheet: Sheet, log: JobLog) -> None:
        plain = log.say

        def say(time: float, text: str, rank: int | None = None) -> None:
            if not _LATER.search(text):
                plain(time, text, rank)

        log.say = say  # type: ignore[method-assign]

    return show
