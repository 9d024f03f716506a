"""What the eleventh author's held-out set (`ad-`) needs beyond the rest: one rail, one card, a reboot."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only, port_dark
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Floats, Run


@fault
def ad_congested_rail(
    run: Run, factor: float, begin: Place, end: Place = 1.0, rail: int = 5, cnp: float = 6000.0
) -> Show:
    """The leaf switch of one rail is overloaded: that NIC of every host is told to slow down, the other rails not."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor * run.rng.uniform(0.985, 1.015, max(0, min(last, run.at(1.0)) - first)))
    weights = run.rng.uniform(0.75, 1.25, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, port = run.time_of(first), run.time_of(last), f"{run.spec.nic}_{rail}"
        for host, weight in zip(run.hosts, weights, strict=True):
            for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.93), ("rx_ecn_pkts", 2.3)):
                sheet.rate(f"hw_rdma_{metric}_total", cnp * much * float(weight), since, until, host, device=port)

    return show


@fault
def ad_card_limit(run: Run, host: Hosts, gpu: int, factor: float, begin: Place = 0) -> Show:
    """One GPU got a lower power limit: it works without rest, its power pinned at the limit, its clock below."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    limit = 10.0 * round(run.profile.active_w * factor**-1.7 / 10.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, card = run.time_of(first), only(host), str(gpu)
        sheet.put("hw_gpu_power_watts", limit, since, run.work_end, name, gpu=card)

        def hum(t: Floats) -> Floats:
            return np.sin(1.3 * t) * np.cos(0.37 * t)

        sheet.add("hw_gpu_power_watts", 1.5, since, run.work_end, name, shape=hum, gpu=card)
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_clock_mhz", 35.0, since, run.work_end, name, shape=hum, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", -3.0, since, run.work_end, name, gpu=card)

    return show


@fault
def ad_reboot(run: Run, host: Hosts, at: Place, away_s: float = 380.0, silent_s: float = 900.0) -> Show:
    """A node restarts by itself: it answers nobody for minutes, then its exporters are back and its trainer is not."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 5.0
        sheet.down(name, dies, dies + away_s)
        sheet.process_gone(name, dies)
        sheet.add("ray_node_mem_used", -150e9, dies, run.end + 60.0, name)
        rank = run.hosts.index(name)
        log.mute.add(rank)
        log.hide_workers.add(rank)
        log.exits[rank] = 0  # nobody is left there to report an exit
        for device in range(8):  # what the NICs counted before is forgotten
            port, old = f"{run.spec.nic}_{device}", float(run.rng.integers(700, 90_000))
            sheet.lifetime("hw_rdma_tx_retx_pkts_total", name, old, port)
            for metric, share in (
                ("tx_retx_pkts", 1.0),
                ("ccl_tx_retx_pkts", 0.9),
                ("rx_dup_request", 0.7),
                ("tx_ack_timeout", 1 / 700),
            ):
                sheet.count(f"hw_rdma_{metric}_total", -float(np.floor(old * share)), dies, name, device=port)

    return show


@fault
def ad_will_not_die(run: Run, host: Hosts, after_s: float = 185.0) -> Show:
    """The job is cancelled; the trainer of one host sleeps in the kernel and cannot be killed, Slurm gives it up."""
    run.silent_s = max(run.silent_s, after_s + 30.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, asked = only(host), run.work_end + 6.0

        def stamp(time: float) -> str:
            return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S")

        step = f"{run.job_id}.3"
        log.say(asked, f"slurmstepd: error: *** STEP {step} ON {run.hosts[0]} CANCELLED AT {stamp(asked)} ***")
        log.say(asked + 1.0, "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
        log.say(asked + 34.0, "srun: error: Timed out waiting for job step to complete")
        gone = asked + after_s
        log.say(
            gone,
            f"slurmstepd: error: *** STEP {step} STEPD TERMINATED ON {name} AT {stamp(gone)} "
            "DUE TO JOB NOT ENDING WITH SIGNALS ***",
        )
        log.say(gone + 0.5, f"srun: error: {name}: task {run.hosts.index(name)}: Kill task failed")
        run.exit_code, log.reason = 143, "CANCELLED (scancel / SIGTERM)"
        log.exits[run.hosts.index(name)] = 0
        for other in run.hosts:
            if other not in many(host):
                sheet.process_gone(other, asked + 3.0)
        sheet.add("hw_procs_blocked", 8.0, asked + 2.0, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, asked + 2.0, run.end, name)
        sheet.put("hw_gpu_power_watts", run.profile.idle_w, asked + 2.0, run.end, name)

    return show


@fault
def ad_lost_card(run: Run, host: Hosts, gpu: int) -> Show:
    """A GPU has fallen off the bus: from then on its host reports nothing sensible of it."""

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, card = run.work_end + 5.0, only(host), str(gpu)
        sheet.put("hw_gpu_power_watts", 0.0, since, run.end, name, gpu=card)
        sheet.put("hw_gpu_clock_mhz", 0.0, since, run.end, name, gpu=card)
        sheet.put("hw_gpu_temperature_celsius", 0.0, since, run.end, name, gpu=card)
        sheet.add("hw_dmesg_gpu_errors_total", 3.0, since, run.end, name)

    return show


@fault
def ad_never_joined(run: Run, host: Hosts, text: str, others: str, waited_s: float = 600.0) -> Show:
    """The trainer of a host never starts; the store at the head counts the others, waits and gives up."""
    run.zero_steps = True
    run.spec.init_s = waited_s + 30.0

    def show(sheet: Sheet, log: JobLog) -> None:
        log.no_training = True
        begin = run.training_begin + 10.0
        there = f"{len(run.hosts) - len(many(host))}/{len(run.hosts)}"
        for rank, name in enumerate(run.hosts):
            if name in many(host):
                continue
            log.say(begin, f"[Node {rank} @ {name}] Training subprocess started (pid={1000 + rank})", rank)
            said = text if rank == 0 else others
            moment = begin + 5.0 + waited_s + (0.0 if rank == 0 else float(run.rng.uniform(2.0, 4.0)))
            log.say(moment, said.replace("{there}", there).replace("{host}", name).rstrip("\n"), rank)
            log.exits[rank] = 1

    return show


@fault
def ad_flaky_exporters(run: Run, hosts: Hosts, begin: Place, end: Place) -> Show:
    """Exporters crash and are started again and again: minutes without an answer, then a few pages, each its own."""
    first, last = run.at(begin), run.at(end)

    def show(sheet: Sheet, log: JobLog) -> None:
        until = run.time_of(last)
        for name in many(hosts):
            time = run.time_of(first) + float(run.rng.uniform(0, 120))
            while time < until:
                away = float(run.rng.uniform(240, 480))
                sheet.down(name, time, min(time + away, until))
                time += away + float(run.rng.uniform(50, 130))

    return show


@fault
def ad_port_away(run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0, device: int = 3) -> Show:
    """A port is down for a part of the run; the other ports of its host carry its traffic meanwhile."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.end if last >= run.at(1.0) else run.time_of(last)
        port_dark(run, sheet, only(host), device, since, until)

    return show
