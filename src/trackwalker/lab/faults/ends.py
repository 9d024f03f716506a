"""How a run ends: nodes, processes, launchers, time limits."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing, only
from trackwalker.lab.faults.shapes import filled
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


@fault
def node_death(run: Run, host: Hosts, at: Place, silent_s: float) -> Show:
    """A node vanishes; the others wait for it."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        sheet.gone(name, run.work_end + 4.0)
        log.mute.add(run.hosts.index(name))
        log.hide_workers.add(run.hosts.index(name))

    return show


@fault
def process_death(run: Run, host: Hosts, at: Place, silent_s: float, code: int = 137, text: str = "") -> Show:
    """A training process dies on a living node."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s

    def show(sheet: Sheet, log: JobLog) -> None:
        name = only(host)
        rank = run.hosts.index(name)
        sheet.process_gone(name, run.work_end + 4.0)
        log.exits[rank] = code
        log.mute.add(rank)
        if text:
            log.say(run.work_end + 5.0, text, rank)

    return show


@fault
def heartbeat(run: Run, hosts: Hosts, wait_s: float = 0.0) -> Show:
    """The coordination service declares tasks dead."""
    run.silent_s = max(run.silent_s, wait_s, 20.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        log.accused = sorted(run.hosts.index(h) for h in many(hosts))

    return show


@fault
def crash(
    run: Run,
    text: str,
    host: Hosts | None = None,
    code: int = 1,
    at: Place | None = None,
    before_training: bool = False,
    others: str = "",
    launcher: bool = False,
    delay_s: float = 8.0,
) -> Show:
    """A rank (or all of them) prints an error and ends; the others follow with `others` and the cascade."""
    if at is not None:
        run.hang_step = run.at(at)
    if before_training:
        run.zero_steps = True
    run.silent_s = max(run.silent_s, delay_s + 20.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        time = run.work_end + delay_s
        ranks = [run.hosts.index(h) for h in many(host)] if host else list(range(len(run.hosts)))
        for rank in ranks:
            filled = text.replace("{host}", run.hosts[rank]).replace("{rank}", str(rank)).rstrip("\n")
            log.say(time + float(run.rng.uniform(0, 0.5)), filled, None if launcher else rank)
            log.exits[rank] = code
            sheet.process_gone(run.hosts[rank], time)
        if others:
            log.everyone(time + 4.0, others.rstrip("\n"), but=set(ranks))

    return show


@fault
def no_exit(run: Run, host: Hosts) -> Show:
    """A node that is gone reports no exit."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            log.exits[run.hosts.index(name)] = 0

    return show


@fault
def tail(run: Run, seconds: float) -> Show:
    """After the last step the teardown takes its time."""
    run.silent_s = max(run.silent_s, float(seconds))
    return nothing


@fault
def train_timeout(run: Run) -> Show:
    """The training stage runs into its own time limit."""

    def show(sheet: Sheet, log: JobLog) -> None:
        limit = int(run.end - run.training_begin)
        how = f"TIMEOUT ({limit}s/{limit}s)"
        log.say(run.end - 3.0, f"== Training {how} ==")
        log.reason = f"Training {how}"
        log.exits = dict.fromkeys(range(len(run.hosts)), 143)

    return show


@fault
def console_then_gone(run: Run, host: Hosts, at: Place, text: str, silent_s: float = 400.0) -> Show:
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


@fault
def node_reboots(run: Run, host: Hosts, at: Place, away_s: float = 380.0, silent_s: float = 900.0) -> Show:
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
def will_not_die(run: Run, host: Hosts, after_s: float = 185.0) -> Show:
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
def slurm_sees_node_down(run: Run, host: Hosts, after_s: float = 300.0) -> Show:
    """The controller gives a node up and ends the step; it is the launcher that says so."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, time = only(host), run.work_end + after_s
        stamp = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        log.say(time, f"srun: error: Node failure on {name}")
        log.say(time, "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.")
        log.say(
            time + 0.5,
            f"slurmstepd: error: *** STEP {run.job_id}.3 ON {run.hosts[0]} CANCELLED AT {stamp} "
            "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        )

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
