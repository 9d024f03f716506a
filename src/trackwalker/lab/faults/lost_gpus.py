"""GPUs with errors: off the bus, uncorrectable memory, drivers that do not answer."""

from __future__ import annotations

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, only
from trackwalker.lab.faults.shapes import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


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


@fault
def correctable(run: Run, host: Hosts, gpu: int, per_hour: float, begin: Place = 0) -> Show:
    """Correctable memory errors accumulate."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        sheet.rate(
            "hw_gpu_ras_umc_ce_total", per_hour / 3600.0, run.time_of(run.at(begin)), run.end, name, gpu=str(gpu)
        )

    return show


@fault
def card_off_bus(run: Run, host: Hosts, gpu: int) -> Show:
    """A GPU is off the bus: the kernel says so, its own gauges read nothing, the exporter takes longer."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since = only(host), str(gpu), run.work_end + 4.0
        sheet.put("hw_gpu_power_watts", 0.0, since, run.end + 60.0, name, gpu=card)
        sheet.put("hw_gpu_clock_mhz", 0.0, since, run.end + 60.0, name, gpu=card)
        sheet.put("hw_gpu_temperature_celsius", 0.0, since, run.end + 60.0, name, gpu=card)
        sheet.add("hw_dmesg_gpu_errors_total", 5.0, since, run.end + 60.0, name)
        sheet.add("hw_scrape_duration_seconds", 4.0, since, run.end + 60.0, name)

    return show


@fault
def lost_card(run: Run, host: Hosts, gpu: int) -> Show:
    """A GPU has fallen off the bus: from then on its host reports nothing sensible of it."""

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, card = run.work_end + 5.0, only(host), str(gpu)
        sheet.put("hw_gpu_power_watts", 0.0, since, run.end, name, gpu=card)
        sheet.put("hw_gpu_clock_mhz", 0.0, since, run.end, name, gpu=card)
        sheet.put("hw_gpu_temperature_celsius", 0.0, since, run.end, name, gpu=card)
        sheet.add("hw_dmesg_gpu_errors_total", 3.0, since, run.end, name)

    return show


@fault
def reset_card(run: Run, host: Hosts, gpu: int) -> Show:
    """A GPU that its driver resets in vain: no clock, idle power, errors in the kernel's log, slow scrapes."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since = only(host), str(gpu), run.work_end + 4.0
        sheet.put("hw_gpu_clock_mhz", 0.0, since, run.end, name, gpu=card)
        sheet.put("hw_gpu_power_watts", 0.6 * run.profile.idle_w, since, run.end, name, gpu=card)
        sheet.add("hw_dmesg_gpu_errors_total", 9.0, since, run.end, name)
        sheet.add("hw_scrape_duration_seconds", 5.5, since, run.end, name)

    return show


@fault
def page_retired(run: Run, host: Hosts, gpu: int, at: Place, number: float = 1.0) -> Show:
    """A row of a GPU's memory is marked for remapping: the kernel log notes it, the work goes on."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(run.at(at)) + 3.0
        sheet.count("hw_gpu_ras_umc_ce_total", 12.0, since, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", number, since, run.end + 60.0, name)

    return show


@fault
def row_remap(run: Run, host: Hosts, gpu: int, at: Place, text: str) -> Show:
    """A GPU marks a weak row of its memory for remapping: the kernel log notes it, the work goes on."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(run.at(at)) + 2.0
        sheet.count("hw_gpu_ras_umc_ce_total", 3.0, since - 1.0, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", 1.0, since, run.end + 60.0, name)
        log.say(since, filled(run, text, name, since), run.hosts.index(name))

    return show


@fault
def driver_mute(run: Run, host: Hosts, gpu: int, at: Place, text: str, others: str, waited_s: float = 600.0) -> Show:
    """The firmware of one GPU answers its driver no more: processes on the host block, the rest waits and times out."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, waited_s + 50.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.work_end + 6.0
        rank = run.hosts.index(name)
        for number, line in enumerate(text.rstrip("\n").split("\n")):
            moment = since + 6.0 * number
            log.say(moment, filled(run, line, name, moment), rank)
        sheet.add("hw_dmesg_gpu_errors_total", 6.0, since, run.end + 60.0, name)
        sheet.add("hw_scrape_duration_seconds", 7.5, since, run.end + 60.0, name)
        sheet.add("hw_procs_blocked", 5.0, since, run.end + 60.0, name)
        sheet.put("hw_gpu_power_watts", run.profile.idle_w, since, run.end + 60.0, name, gpu=str(gpu))
        sheet.put("hw_gpu_clock_mhz", 0.0, since, run.end + 60.0, name, gpu=str(gpu))
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end + 60.0, name, GpuIndex=str(gpu))
        for number, other in enumerate(run.hosts):
            moment = run.work_end + waited_s + float(run.rng.uniform(0, 2.0))
            if other != name:
                log.say(moment, filled(run, others, other, moment), number)
            log.exits[number] = 134
            sheet.process_gone(other, moment + 10.0)

    return show


@fault
def card_error(run: Run, host: Hosts, gpu: int, at: Place, text: str, others: str, wait_s: float = 95.0) -> Show:
    """A GPU's memory returns uncorrectable data: its rank ends at once, the rest when their watchdogs notice."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, wait_s + 30.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, fails = only(host), run.work_end + 7.0
        guilty = run.hosts.index(name)
        sheet.count("hw_gpu_ras_umc_ue_total", 1.0, fails - 1.0, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", 2.0, fails - 1.0, run.end + 60.0, name)
        sheet.process_gone(name, fails)
        said = text.replace("{gpu}", str(gpu)).replace("{cardrank}", str(guilty * run.spec.gpus + gpu))
        log.say(fails, filled(run, said, name, fails), guilty)
        log.exits[guilty] = 1
        for rank, other in enumerate(run.hosts):
            if rank != guilty:
                moment = fails + wait_s + float(run.rng.uniform(0, 2.0))
                log.say(moment, filled(run, others, other, moment), rank)
                log.exits[rank] = 134
                sheet.process_gone(other, moment + 4.0)

    return show


@fault
def uncontained_memory_error(run: Run, host: Hosts, gpu: int, text: str) -> Show:
    """The memory of one GPU returns what ECC cannot mend: counters and kernel log of its host say so."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.work_end + 4.0
        sheet.count("hw_gpu_ras_umc_ue_total", 1.0, since, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", 2.0, since, run.end + 60.0, name)
        if text:
            log.say(since, filled(run, text, name, since), run.hosts.index(name))

    return show


@fault
def gpu_lost(run: Run, host: Hosts, gpu: int) -> Show:
    """A GPU stops answering after the last step: the kernel log notes it, its readings fall to nothing."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, card = only(host), run.work_end + 3.0, str(gpu)
        sheet.add("hw_dmesg_gpu_errors_total", 3.0, since, run.end + 60.0, name)
        for metric in ("power_watts", "clock_mhz", "temperature_celsius"):
            sheet.put(f"hw_gpu_{metric}", 0.0, since, run.end + 60.0, name, gpu=card)

    return show


@fault
def pcie_trickle(run: Run, host: Hosts, gpu: int, per_hour: float = 30.0) -> Show:
    """A GPU's PCIe link corrects an error now and then, as links do; nothing is slower for it."""

    def show(sheet: Sheet, log: JobLog) -> None:
        rate = per_hour / 3600.0
        sheet.rate("hw_gpu_pcie_correctable_total", rate, run.steps_from, run.end, only(host), gpu=str(gpu))

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
