"""GPUs: too hot, held back, broken."""

from __future__ import annotations

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Run


@fault
def thermal(
    run: Run, host: Hosts, gpu: int, factor: float, begin: Place, end: Place = 1.0, peak: float = 101.0
) -> Show:
    """One GPU overheats and clocks down; the others wait and cool."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, card = run.time_of(first), run.time_of(last), str(gpu)
        name = only(host)
        hotter = peak - run.profile.hot_c + (1 - 1 / factor) * 25.0
        sheet.add(
            "hw_gpu_temperature_celsius", hotter, since - 240, until, name, shape=ramp(since - 240, 300), gpu=card
        )
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.05, since, until, name, gpu=card)
        sheet.add("hw_gpu_power_watts", 60.0, since, until, name, gpu=card)

    return show


@fault
def power_cap(run: Run, factor: float, begin: Place = 0, hosts: Hosts | None = None, share: float = 0.75) -> Show:
    """A lower power limit: power flat at the cap, clocks down, cool."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        cap = run.profile.active_w * share
        for host in many(hosts) if hosts else run.hosts:
            sheet.put("hw_gpu_power_watts", cap, since, run.work_end, host)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, run.work_end, host)
            sheet.add("hw_gpu_temperature_celsius", -6.0, since, run.work_end, host)

    return show


@fault
def clock(run: Run, host: Hosts, factor: float, begin: Place, gpu: int | None = None) -> Show:
    """Clocks stay low without heat or a power limit."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for name in many(host):
            for card in range(run.spec.gpus) if gpu is None else [gpu]:
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.04, since, run.work_end, name, gpu=str(card))
                sheet.scale("hw_gpu_power_watts", 0.9, since, run.work_end, name, gpu=str(card))

    return show


@fault
def gpu_error(
    run: Run, host: Hosts, gpu: int, at: Place, metric: str = "hw_gpu_ras_umc_ue_total", text: str = "", code: int = 134
) -> Show:
    """An uncorrectable GPU error ends one rank."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 90.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        rank, dies = run.hosts.index(name), run.work_end + 6.0
        sheet.count(metric, 2.0, dies - 20, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", 4.0, dies - 20, run.end, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = code
        if text:
            log.say(dies, text.replace("{host}", name), rank)
        log.say(dies + 1, f"[Node {rank} @ {name}] Training subprocess killed by SIGABRT (signal 6)", rank)

    return show
