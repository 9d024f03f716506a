"""What the fourth held-out set needs beyond the rest: faults that come and go, strangers in the database, odd logs."""

from __future__ import annotations

import re

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing, only, rewritten
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Run


@fault
def thermal_swings(
    run: Run, host: Hosts, gpu: int, factor: float, times: int, steps: int, begin: Place, peak: float = 90.0
) -> Show:
    """A GPU reaches its limit again and again and cools down in between: the air of the room comes and goes."""
    starts = np.linspace(run.at(begin), run.at(1.0) - steps - 2, times).astype(int).tolist()
    for s in starts:
        run.slow(s, s + steps, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card = only(host), str(gpu)
        hotter = peak - run.profile.hot_c + (1 - 1 / factor) * 25.0
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            heat = ramp(since - 60, 70)
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 60, until, name, shape=heat, gpu=card)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.03, since, until, name, gpu=card)
            sheet.add("hw_gpu_power_watts", 30.0, since, until, name, gpu=card)

    return show


@fault
def counter_reset(run: Run, host: Hosts, at: Place, retx: float = 90e6, device: int = 2) -> Show:
    """Somebody clears a NIC's statistics during the run: its counters begin at zero again."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port = only(host), f"{run.spec.nic}_{device}"
        sheet.lifetime("hw_rdma_tx_retx_pkts_total", name, retx, port)
        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.9), ("rx_dup_request", 0.7)):
            old = float(np.floor(retx * share))
            sheet.count(f"hw_rdma_{metric}_total", -old, run.time_of(run.at(at)), name, device=port)

    return show


@fault
def stranger(run: Run, name: str, procs: float = 140.0, tcp: float = 900.0) -> Show:
    """A busy machine that is no part of the job (a login node) reports into the same database."""

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.strangers.append(name)
        sheet.absent("hw_gpu_*", name)
        sheet.process_gone(name, 0.0)
        sheet.add("hw_procs_running", procs, run.start, run.end, name)
        sheet.add("hw_io_pressure_full_pct", 45.0, run.start, run.end, name)
        sheet.rate("hw_tcp_retransmits_total", tcp, run.start, run.end, name)
        sheet.rate("hw_rdma_tx_retx_pkts_total", 3.0, run.start, run.end, name)

    return show


@fault
def cleared_kill(run: Run, host: Hosts, at: Place, to_gb: float = 2150.0, over_s: float = 150.0) -> Show:
    """The kernel kills a trainer whose memory ran full within minutes; no log says so, the kernel's counter does."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 120.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 6.0
        rank = run.hosts.index(name)
        grown = ramp(dies - over_s, over_s - 15.0)
        sheet.add("ray_node_mem_used", to_gb * 1e9 - 204e9, dies - over_s, dies + 1.0, name, shape=grown)
        sheet.count("hw_oom_kills_total", 1.0, dies, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.mute.add(rank)

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
def uncontrolled(run: Run, host: Hosts, factor: float, enabled: int = 3, begin: Place = 0) -> Show:
    """A host's NICs send without congestion control: it is told to slow down, does not, and loses packets."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(first)
        said = f"WARNING: {name} | [CHECK_DCQCN] {enabled} enabled (expected 8)"
        log.say(run.start + 31.0, said, run.hosts.index(name))
        for device in range(enabled, 8):
            port = f"{run.spec.nic}_{device}"
            for metric, much in (("rx_cnp_pkts", 2600.0), ("tx_retx_pkts", 120.0), ("ccl_tx_retx_pkts", 110.0)):
                sheet.rate(f"hw_rdma_{metric}_total", much, since, run.work_end, name, device=port)

    return show


@fault
def last_words(run: Run, text: str, host: Hosts | None = None, launcher: bool = False, wait_s: float = 20.0) -> Show:
    """What is written after everything else, when the end of the job was already ordered."""
    run.silent_s = max(run.silent_s, wait_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host) if host else run.hosts[:1]:
            said = text.replace("{host}", name).replace("{glog}", glog(run.end)).replace("{job}", run.job_id)
            log.say(run.end - 1.0, said.rstrip("\n"), None if launcher else run.hosts.index(name))

    return show


@fault
def slow_start(run: Run, factor: float, end: Place) -> Show:
    """The first steps are slow for no reason that anybody recorded; then it runs as it should."""
    run.slow(run.first, run.at(end), factor)
    return nothing


@fault
def coloured_log(run: Run) -> Show:
    """The merged log in colours, with rank labels of equal width."""

    def change(text: str, _: Run) -> str:
        wide = re.sub(r"^ *(\d+): ", lambda m: f"{int(m[1]):03d}: \x1b[36m", text, flags=re.MULTILINE)
        return "\n".join(line + "\x1b[0m" if "\x1b[" in line else line for line in wide.split("\n"))

    return rewritten(change)


@fault
def log_begins(run: Run, at: Place) -> Show:
    """The beginning of the merged log was rotated away; the ranks' own logs are lost with it."""
    run.spec.worker_logs = False

    def change(text: str, _: Run) -> str:
        return text[text.find("\n", text.find(f"completed step: {run.at(at)},")) + 1 :]

    return rewritten(change)


@fault
def only_header(run: Run) -> Show:
    """The disk of the logs was full: the merged log holds what the launcher wrote first, and nothing else."""
    run.spec.worker_logs = False

    def change(text: str, _: Run) -> str:
        return text[: text.find("== Preflight BEGIN")]

    return rewritten(change)
