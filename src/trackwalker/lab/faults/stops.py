"""What ends a run, or keeps it from going on."""

from __future__ import annotations

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing, only
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


@fault
def hang(run: Run, at: Place, silent_s: float) -> Show:
    """All ranks wait in a collective that does not end."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s
    return nothing


@fault
def data_hang(run: Run, at: Place, silent_s: float) -> Show:
    """The next batch never comes: steps stop, GPUs idle, processes live."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s
    run.batch_never_comes = True

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.work_end
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end)
        sheet.add("hw_procs_running", -9.0, since, run.end)

    return show


@fault
def keeps_working(run: Run, host: Hosts) -> Show:
    """One host goes on computing while the others wait for it."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            more = run.profile.active_w - run.profile.spin_w
            sheet.add("hw_gpu_power_watts", more, run.work_end, run.end, name)

    return show


@fault
def init_hang(run: Run, silent_s: float, compiling: bool = False) -> Show:
    """No first step: a deadlock in the first collective, or (compiling) a long compilation."""
    run.zero_steps = True
    run.silent_s = silent_s
    if not compiling:
        run.hang_step = run.first

    def show(sheet: Sheet, log: JobLog) -> None:
        log.compile_lines = True
        if compiling:
            sheet.add("hw_procs_running", 30.0, run.steps_from - 100, run.end)
            sheet.add("ray_node_cpu_utilization", 40.0, run.steps_from - 100, run.end)

    return show


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
def save_cut_off(run: Run, seconds: float) -> Show:
    """The job ends inside a save; the step before it is done and not yet told of."""
    run.silent_s = max(run.silent_s, seconds + run.spec.step_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        run.last_save_begins = run.end - 5.0 - seconds

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
def stage_failure(run: Run, stage: str, text: str, host: Hosts | None = None, took_s: float = 900.0) -> Show:
    """The run ends in a stage before training."""
    run.zero_steps = True

    def show(sheet: Sheet, log: JobLog) -> None:
        log.no_training = True
        ranks = [run.hosts.index(h) for h in many(host)] if host else list(range(len(run.hosts)))
        for rank in ranks:
            log.say(run.start + 39.0, text.replace("{host}", run.hosts[rank]).rstrip("\n"), rank)
            log.exits[rank] = 1
        log.say(run.start + 59.5, f"== {stage} ==")
        log.reason = stage

    return show
