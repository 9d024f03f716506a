"""Looks bad, is normal."""

from __future__ import annotations

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing, only
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


@fault
def blip(run: Run, at: Place, seconds: float = 15.0, host: Hosts | None = None) -> Show:
    """One slow step, perhaps with a coincident burst on one NIC."""
    step = run.at(at)
    run.extra[step - run.first] += seconds

    def show(sheet: Sheet, log: JobLog) -> None:
        t = run.time_of(step)
        for name in many(host) if host else []:
            sheet.rate("hw_rdma_tx_retx_pkts_total", 500.0, t, t + 20.0, name, device=f"{run.spec.nic}_1")

    return show


@fault
def profiler(run: Run, at: int = 5, steps: int = 3) -> Show:
    """The profiler records some steps and writes its dump in the last."""
    for s in range(at, at + steps):
        run.extra[s - run.first] += 0.08 * run.spec.step_s
    run.extra[at + steps - run.first] += 0.5 * run.spec.step_s
    run.spec.config |= {"profiler": "xplane", "skip_first_n_steps_for_profiler": str(at), "profiler_steps": str(steps)}

    return nothing


@fault
def note(run: Run, text: str, at: Place = 0.5, host: Hosts | None = None, launcher: bool = False) -> Show:
    """Lines that say something, without consequence for the run."""

    def show(sheet: Sheet, log: JobLog) -> None:
        time = run.time_of(run.at(at)) + 0.5
        for name in many(host) if host else run.hosts[:1]:
            log.say(time, text.replace("{host}", name).rstrip("\n"), None if launcher else run.hosts.index(name))

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
def correctable(run: Run, host: Hosts, gpu: int, per_hour: float, begin: Place = 0) -> Show:
    """Correctable memory errors accumulate."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        sheet.rate(
            "hw_gpu_ras_umc_ce_total", per_hour / 3600.0, run.time_of(run.at(begin)), run.end, name, gpu=str(gpu)
        )

    return show


@fault
def tcp_noise(run: Run, per_s: float = 2500.0, hosts: Hosts | None = None) -> Show:
    """Storage traffic loses TCP packets for hours."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for host in many(hosts) if hosts else run.writers:
            sheet.rate("hw_tcp_retransmits_total", per_s, run.steps_from, run.end, host)

    return show


@fault
def power_spread(run: Run, watts: float = 60.0) -> Show:
    """GPUs differ: the natural spread of a batch of chips."""
    offsets = run.rng.uniform(-watts / 2, watts / 2, (len(run.hosts), run.spec.gpus))

    def show(sheet: Sheet, log: JobLog) -> None:
        for i, host in enumerate(run.hosts):
            for gpu in range(run.spec.gpus):
                sheet.add(
                    "hw_gpu_power_watts", float(offsets[i, gpu]), run.steps_from, run.work_end, host, gpu=str(gpu)
                )

    return show


@fault
def mild_cnp(run: Run, hosts: Hosts, per_s: float = 60.0) -> Show:
    """Some congestion notifications on some hosts, from the beginning."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for host in many(hosts):
            sheet.rate("hw_rdma_rx_cnp_pkts_total", per_s, run.steps_from, run.end, host)

    return show
