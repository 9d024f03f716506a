"""Hosts: processors, memory, storage."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Run


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
def restore_memory(run: Run, peak_gb: float = 249.0, after_gb: float = 95.0) -> Show:
    """A restore needs memory for a while and gives it back before training."""

    def show(sheet: Sheet, log: JobLog) -> None:
        begin, end, training = run.training_begin + 40.0, run.training_begin + 130.0, run.steps_from - 60.0
        sheet.add("ray_node_mem_used", (peak_gb - 62.0) * 1e9, begin, end, shape=ramp(begin, 60.0))
        sheet.add("ray_node_mem_used", (after_gb - 62.0) * 1e9, end, training)

    return show


@fault
def slow_storage(run: Run, growth: list[float]) -> Show:
    """Saves take longer and longer."""
    run.save_growth = np.array(growth, dtype=float)

    def show(sheet: Sheet, log: JobLog) -> None:
        for start, end, _ in run.saves:
            for host in run.writers:
                sheet.add("hw_io_pressure_full_pct", 20.0, start, end, host)
                sheet.add("hw_procs_blocked", 8.0, start, end, host)

    return show


@fault
def host_oom(run: Run, host: Hosts, at: Place, leak: bool = False, limit_gb: float = 2160.0) -> Show:
    """The kernel kills the trainer of one host: its memory ran out slowly (leak) or at a save."""
    step = run.at(at)
    run.hang_step = step
    run.silent_s = max(run.silent_s, 60.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        rank, dies = run.hosts.index(name), run.work_end + 8.0
        instance = f"{name}"
        have = 204e9
        if leak:
            since = run.time_of(run.first + 10)
            sheet.add(
                "ray_node_mem_used", limit_gb * 1e9 - have, since, run.end, instance, shape=ramp(since, dies - since)
            )
        else:
            sheet.add(
                "ray_node_mem_used", limit_gb * 1e9 - have, dies - 60, dies + 15, instance, shape=ramp(dies - 60, 50)
            )
        sheet.count("hw_oom_kills_total", 1.0, dies - 5, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(
            dies,
            f"slurmstepd: error: Detected 1 oom_kill event in StepId={run.job_id}.3. "
            "Some of the step tasks have been OOM Killed.",
        )
        log.say(dies, f"[Node {rank} @ {name}] Training subprocess killed by SIGKILL (signal 9)", rank)

    return show
