"""Saves that take longer, and the storage they go to."""

from __future__ import annotations

from copy import copy

import numpy as np

from trackwalker.lab.faults.base import Hosts, Show, fault, many
from trackwalker.lab.faults.shapes import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


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
def tcp_noise(run: Run, per_s: float = 2500.0, hosts: Hosts | None = None) -> Show:
    """Storage traffic loses TCP packets for hours."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for host in many(hosts) if hosts else run.writers:
            sheet.rate("hw_tcp_retransmits_total", per_s, run.steps_from, run.end, host)

    return show


@fault
def sick_target(run: Run, growth: list[float], text: str, after: int = 3) -> Show:
    """One storage target of the file system limps: saves take longer from some save on, clients complain on writers."""
    run.save_growth = np.array(growth, dtype=float)

    def show(sheet: Sheet, log: JobLog) -> None:
        for number, (since, until, _) in enumerate(run.saves, 1):
            if number < after:
                continue
            for name in run.writers:
                sheet.add("hw_io_pressure_full_pct", 22.0, since, until, name)
                sheet.add("hw_io_pressure_some_pct", 24.0, since, until, name)
                sheet.add("hw_procs_blocked", 9.0, since, until, name)
            for name in run.writers[:: max(1, len(run.writers) // 3)]:
                moment = since + 0.6 * (until - since)
                said = filled(run, text.replace("{epoch}", f"{moment:.0f}"), name, moment)
                log.say(moment, said, run.hosts.index(name))

    return show


@fault
def slow_writer(run: Run, host: Hosts, growth: list[float]) -> Show:
    """One writer's disk becomes slower from save to save; the others are done long before and wait for it."""
    run.save_growth = np.array(growth, dtype=float)

    def show(sheet: Sheet, log: JobLog) -> None:
        for number, (start, end, _) in enumerate(run.saves):
            usual = (end - start) / growth[min(number + 1, len(growth) - 1)]
            for name in run.writers:
                if name in many(host):
                    sheet.add("hw_io_pressure_full_pct", 30.0, start, end, name)
                    sheet.add("hw_procs_blocked", 12.0, start, end, name)
                else:
                    for metric in ("hw_io_pressure_full_pct", "hw_io_pressure_some_pct", "hw_procs_blocked"):
                        sheet.scale(metric, 0.0, start + usual, end, name)

    return show


@fault
def full_targets(run: Run, growth: list[float], text: str = "", after: int = 4) -> Show:
    """Storage targets fill up: each save takes longer, its writers sleep, clients complain."""
    run.save_growth = np.array(growth, dtype=float)

    def show(sheet: Sheet, log: JobLog) -> None:
        for number, (start, end, _) in enumerate(run.saves):
            much = growth[min(number + 1, len(growth) - 1)]
            for host in run.writers:
                sheet.add("hw_io_pressure_full_pct", 9.0 * much, start, end, host)
                sheet.add("hw_io_pressure_some_pct", 11.0 * much, start, end, host)
                sheet.add("hw_procs_blocked", 3.0 * much, start, end, host)
            if text and number + 1 >= after:
                name, moment = run.writers[number % len(run.writers)], start + 0.6 * (end - start)
                log.say(moment, filled(run, text, name, moment), run.hosts.index(name))

    return show


@fault
def busy_target(run: Run, growth: list[float], text: str) -> Show:
    """The file system's servers fall behind from save to save; the writers wait in the kernel, all alike."""
    run.save_growth = np.array(growth, dtype=float)

    def show(sheet: Sheet, log: JobLog) -> None:
        for number, (start, end, _) in enumerate(run.saves):
            much = growth[min(number + 1, len(growth) - 1)]
            for name in run.writers:
                sheet.add("hw_io_pressure_full_pct", 9.0 * much, start, end, name)
                sheet.add("hw_procs_blocked", 4.0 * much, start, end, name)
            if much >= 1.6:
                moment, name = start + 0.6 * (end - start), run.writers[number % len(run.writers)]
                said = text.replace("{sent}", f"{moment - 44:.0f}").replace("{dl}", f"{moment:.0f}")
                log.say(moment, filled(run, said, name, moment), run.hosts.index(name))

    return show


@fault
def save_cut(run: Run, lasted_s: float) -> Show:
    """A save begins after the last step and the end of the run comes before it is done."""
    run.silent_s = max(run.silent_s, lasted_s)
    if run.hang_step is not None and run.hang_step >= run.first + run.spec.steps:
        run.hang_step = None  # nobody spins in a collective: all are writing

    def show(sheet: Sheet, log: JobLog) -> None:
        log.run = copy(run)
        log.run.saves = list(run.saves)  # the log never says that it was saved
        run.saves.append((run.work_end + 1.0, run.end, run.first + len(run.ends) - 1))

    return show


@fault
def save_cut_off(run: Run, seconds: float) -> Show:
    """The job ends inside a save; the step before it is done and not yet told of."""
    run.silent_s = max(run.silent_s, seconds + run.spec.step_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        run.last_save_begins = run.end - 5.0 - seconds

    return show
