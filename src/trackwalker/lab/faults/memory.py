"""Host memory that fills: leaks, bursts, kills by the kernel."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.faults.shapes import filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


@fault
def restore_memory(run: Run, peak_gb: float = 249.0, after_gb: float = 95.0) -> Show:
    """A restore needs memory for a while and gives it back before training."""

    def show(sheet: Sheet, log: JobLog) -> None:
        begin, end, training = run.training_begin + 40.0, run.training_begin + 130.0, run.steps_from - 60.0
        sheet.add("ray_node_mem_used", (peak_gb - 62.0) * 1e9, begin, end, shape=ramp(begin, 60.0))
        sheet.add("ray_node_mem_used", (after_gb - 62.0) * 1e9, end, training)

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


@fault
def gather_spike(run: Run, host: Hosts, at: Place, text: str, before_s: float = 75.0, to_gb: float = 2140.0) -> Show:
    """A host gathers the whole state for a save: its memory shoots up and the kernel kills the trainer."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, before_s + 70.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + before_s
        rank = run.hosts.index(name)
        up = ramp(dies - before_s + 5.0, before_s - 10.0)
        sheet.add("ray_node_mem_used", to_gb * 1e9 - 205e9, dies - before_s, dies + 3.0, name, shape=up)
        sheet.count("hw_oom_kills_total", 1.0, dies - 2.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies, filled(run, text, name, dies), rank)

    return show


@fault
def leak_everywhere(run: Run, host: Hosts, at: Place, limit_gb: float = 2150.0) -> Show:
    """All trainers' host memory grows with every step; the first that reaches the end of it is killed."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 70.0)
    slopes = run.rng.uniform(0.90, 0.97, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 9.0
        since, rank = run.steps_from + 60.0, run.hosts.index(only(host))
        for other, slope in zip(run.hosts, slopes, strict=True):
            most = (limit_gb * 1e9 - 207e9) * (1.0 if other == name else float(slope))
            until = dies + 3.0 if other == name else run.end
            sheet.add("ray_node_mem_used", most, since, until, other, shape=ramp(since, dies - since))
        sheet.count("hw_oom_kills_total", 1.0, dies - 4.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies + 1, f"[Node {rank} @ {name}] Training subprocess killed by SIGKILL (signal 9)", rank)
        log.say(
            dies + 2,
            f"slurmstepd: error: Detected 1 oom_kill event in StepId={run.job_id}.3. "
            "Some of the step tasks have been OOM Killed.",
        )

    return show


@fault
def worker_leak(run: Run, host: Hosts, begin: Place, at: Place, text: str, to_gb: float = 2145.0) -> Show:
    """The data workers of one host keep what they read; hours later the kernel kills one, and its trainer ends."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 80.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies, since = only(host), run.work_end + 9.0, run.time_of(run.at(begin))
        rank, own = run.hosts.index(name), (to_gb - 206.0) * 1e9
        sheet.add("ray_node_mem_used", own, since, dies + 2.0, name, shape=ramp(since, max(60.0, dies - since - 5.0)))
        sheet.count("hw_oom_kills_total", 1.0, dies - 1.0, name)
        sheet.process_gone(name, dies + 2.0)
        log.exits[rank] = 1
        log.say(dies, filled(run, text, name, dies), rank)

    return show


@fault
def eval_eats_memory(run: Run, host: Hosts, at: Place, text: str, to_gb: float = 2150.0, over_s: float = 420.0) -> Show:
    """One host's evaluation loader copies its data into memory until the kernel kills a process of the trainer."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 90.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 7.0
        rank, grown = run.hosts.index(name), ramp(dies - over_s, over_s - 20.0)
        sheet.add("ray_node_mem_used", to_gb * 1e9 - 204e9, dies - over_s, dies + 2.0, name, shape=grown)
        sheet.count("hw_oom_kills_total", 1.0, dies - 1.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies, filled(run, text, name, dies), rank)

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
def workers_swell(run: Run, host: Hosts, at: Place, text: str, over_s: float = 900.0, to_gb: float = 2140.0) -> Show:
    """The loader workers of one host copy a far larger shard, each for itself, until the kernel kills one."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 75.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 9.0
        rank, since = run.hosts.index(name), dies - over_s
        grows = ramp(since, over_s)
        sheet.add("ray_node_mem_used", to_gb * 1e9 - 206e9, since, dies + 1.0, name, shape=lambda t: grows(t) ** 0.8)
        sheet.count("hw_oom_kills_total", 1.0, dies - 3.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies + 1.0, filled(run, text, name, dies + 1.0), rank)

    return show


@fault
def slow_leak(run: Run, host: Hosts, at: Place, text: str, to_gb: float = 2130.0, begin: Place = 0.05) -> Show:
    """One host's process keeps a little more memory each step until the kernel ends it; the others stay level."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 80.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies, since = only(host), run.work_end + 7.0, run.time_of(run.at(begin))
        rank = run.hosts.index(name)
        bent = ramp(since, dies - since)
        sheet.add("ray_node_mem_used", to_gb * 1e9 - 207e9, since, dies + 2.0, name, shape=lambda t: bent(t) ** 1.15)
        sheet.count("hw_oom_kills_total", 1.0, dies - 2.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies + 1.0, filled(run, text, name, dies + 1.0), rank)

    return show


@fault
def leaks_everywhere(run: Run, host: Hosts, at: Place, text: str, to_gb: float = 2135.0, begin: Place = 0.02) -> Show:
    """The data workers of every host keep memory; the host that reaches the limit first has one of them killed."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 90.0)
    slopes = {h: float(run.rng.uniform(0.84, 0.95)) for h in run.hosts} | dict.fromkeys(many(host), 1.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 7.0
        since, rank = run.time_of(run.at(begin)), run.hosts.index(name)
        for other in run.hosts:
            much = slopes[other] * (to_gb * 1e9 - 204e9)
            sheet.add("ray_node_mem_used", much, since, run.end, other, shape=ramp(since, dies - since))
        sheet.count("hw_oom_kills_total", 1.0, dies - 2.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 1
        said = text.replace("{host}", name).replace("{grank}", str(rank * run.spec.gpus + 3)).rstrip("\n")
        log.say(dies, said, rank)
        log.say(
            dies + 2.0,
            f"slurmstepd: error: Detected 1 oom_kill event in StepId={run.job_id}.3. "
            "Some of the step tasks have been OOM Killed.",
        )
        log.say(dies + 2.1, f"srun: error: {name}: task {rank}: Out Of Memory")

    return show


@fault
def staircase_leak(run: Run, host: Hosts, at: Place, text: str, every: int = 25, limit_gb: float = 2145.0) -> Show:
    """One host keeps a copy of something each so many steps: its memory climbs in stairs until the kernel kills it."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 80.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 7.0
        rank, count = run.hosts.index(name), max(1, len(run.ends) // every)
        stair = (limit_gb * 1e9 - 204e9) / count
        for number in range(1, count + 1):
            since = float(run.ends[min(number * every, len(run.ends)) - 1])
            sheet.add("ray_node_mem_used", stair, since, dies, name, shape=ramp(since, 40.0))
        sheet.count("hw_oom_kills_total", 1.0, dies - 2.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies, filled(run, text, name, dies), rank)

    return show


@fault
def memory_grows(run: Run, hosts: Hosts, to_gb: float, begin: Place = 0) -> Show:
    """Host memory grows evenly from `begin` to the end; nothing is killed yet."""
    first = run.at(begin)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for name in many(hosts):
            grown = ramp(since, run.work_end - since)
            sheet.add("ray_node_mem_used", to_gb * 1e9 - 204e9, since, run.end + 60.0, name, shape=grown)

    return show


@fault
def memory_spike(run: Run, host: Hosts, at: Place, text: str, over_s: float = 240.0, to_gb: float = 2142.0) -> Show:
    """Something on one host takes all memory within minutes and the kernel kills the trainer."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 70.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + 8.0
        rank, since = run.hosts.index(name), run.work_end + 8.0 - over_s

        def grows(t: Floats) -> Floats:
            return np.clip((t - since) / over_s, 0.0, 1.0) ** 1.5

        sheet.add("ray_node_mem_used", to_gb * 1e9 - 206e9, since, dies + 1.0, name, shape=grows)
        sheet.count("hw_oom_kills_total", 1.0, dies - 2.0, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies + 1.0, filled(run, text, name, dies + 1.0), rank)

    return show


@fault
def eval_burst(run: Run, host: Hosts, at: Place, text: str, over_s: float = 110.0, to_gb: float = 2150.0) -> Show:
    """An evaluation set is read into the memory of one host at once, and the kernel kills the trainer."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, over_s + 60.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, dies = only(host), run.work_end + over_s
        rank, since = run.hosts.index(name), run.work_end + 2.0
        full = to_gb * 1e9 - 205e9
        sheet.add("ray_node_mem_used", full, since, dies + 1.0, name, shape=ramp(since, over_s - 8.0))
        sheet.count("hw_oom_kills_total", 1.0, dies, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = 137
        log.say(dies + 1.0, filled(run, text, name, dies + 1.0), rank)

    return show
