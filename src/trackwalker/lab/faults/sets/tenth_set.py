"""What the twelfth author's held-out set (`ae-`) needs beyond the rest: things that were so before the job began."""

from __future__ import annotations

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


@fault
def ae_port_dead(run: Run, host: Hosts, factor: float, device: int = 2) -> Show:
    """A port had no link before the job began; the other ports of its host carry its traffic all the time."""
    run.slow(run.first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port = only(host), f"{run.spec.nic}_{device}"
        sheet.put("hw_rdma_port_state", 0.0, run.start - 600.0, run.end + 600.0, name, device=port)
        for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, run.start - 600.0, run.end + 600.0, name, device=port)
            for other in range(8):
                if other != device:
                    where = f"{run.spec.nic}_{other}"
                    sheet.scale(f"hw_rdma_{metric}_total", 8 / 7, run.start, run.end, name, device=where)

    return show


@fault
def ae_leftover_procs(run: Run, hosts: Hosts, factor: float, procs: float = 110.0, end: Place = 1.0) -> Show:
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
def ae_page_retired(run: Run, host: Hosts, gpu: int, at: Place, number: float = 1.0) -> Show:
    """A row of a GPU's memory is marked for remapping: the kernel log notes it, the work goes on."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(run.at(at)) + 3.0
        sheet.count("hw_gpu_ras_umc_ce_total", 12.0, since, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", number, since, run.end + 60.0, name)

    return show


@fault
def ae_long_compile(run: Run) -> Show:
    """The first step is compiled for minutes: processors busy, GPUs idle, XLA's alarm on every rank."""

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.steps_from, run.steps_from + run.spec.compile_s
        sheet.add("hw_gpu_power_watts", run.profile.idle_w + 12.0 - run.profile.active_w, since, until)
        sheet.add("hw_gpu_temperature_celsius", 40.0 - run.profile.hot_c, since, until)
        sheet.scale("hw_gpu_clock_mhz", 0.08, since, until)
        sheet.put("ray_node_gpus_utilization", 0.0, since, until)
        sheet.add("hw_procs_running", 22.0, since, until)
        sheet.add("ray_node_cpu_utilization", 25.0, since, until)
        for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, until)
        stars = "*" * 32
        asks = (
            "[Compiling module jit_train_step for GPU] Very slow compile? If you want to file a bug, run with envvar "
            "XLA_FLAGS=--xla_dump_to=/tmp/foo and attach the results."
        )
        took = f"The operation took {int(run.spec.compile_s) // 60}m{run.spec.compile_s % 60:.6f}s"
        for rank in range(len(run.hosts)):
            for moment, head in ((since + 120.0, ""), (until, f"{took}\n\n")):
                time = moment + float(run.rng.uniform(0, 3.0))
                said = f"{stars}\n{asks}\n{stars}"
                where = f"E{glog(time)}   27680 slow_operation_alarm.cc:{140 if head else 73}]"
                log.say(time, f"{where} {head}\n{said}", rank)

    return show
