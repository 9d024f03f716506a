"""Runs that fail or hang before their first step."""

from __future__ import annotations

import re

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing
from trackwalker.lab.faults.shapes import filled
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run

_LATER = re.compile(
    r"^(Config param |Attempting to initialize the jax|Jax distributed system|Memstats: |Synchronizing hosts|"
    r"No existing checkpoints found)|cuda_platform\.cc|NCCL WARN MSCCL\+\+"
)


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


@fault
def stage_stops(
    run: Run,
    stage: str,
    how: str,
    text: str,
    host: Hosts | None = None,
    but: Hosts | None = None,
    took_s: float = 900.0,
) -> Show:
    """The run ends inside a stage: the stages before it went well, the ones after it never began."""
    run.zero_steps = True
    run.spec.init_s = max(1.0, took_s - 20.0)
    before = ["Preflight", "Docker pull", "ECC check", "Training"]

    def show(sheet: Sheet, log: JobLog) -> None:
        log.no_training, log.stages = True, False
        time = run.start
        for name in before[: before.index(stage)]:
            log.say(time, f"== {name} BEGIN (timeout=900s) ==")
            log.say(time + 11.0, f"== {name} END (11s) ==")
            time += 12.0
        log.say(time, f"== {stage} BEGIN ({'no timeout' if stage == 'Training' else f'timeout={took_s:.0f}s'}) ==")
        spared = many(but) if but else []
        hit = many(host) if host else [h for h in run.hosts if h not in spared]
        for rank, name in enumerate(run.hosts):
            if name in hit:
                said = text.replace("{host}", name).replace("{rank}", str(rank)).rstrip("\n")
                log.say(time + 4.0 + 0.01 * rank, said, rank)
                log.exits[rank] = 1
        log.say(time + took_s, f"== {stage} {how} ==")
        log.reason = f"{stage} {how}"

    return show


@fault
def stops_early(run: Run) -> Show:
    """The trainer fails while it reads its arguments: nothing that comes later is printed."""

    def show(sheet: Sheet, log: JobLog) -> None:
        plain = log.say

        def say(time: float, text: str, rank: int | None = None) -> None:
            if not _LATER.search(text):
                plain(time, text, rank)

        log.say = say  # type: ignore[method-assign]

    return show


@fault
def never_joined(run: Run, host: Hosts, text: str, others: str, waited_s: float = 600.0) -> Show:
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
def register_timeout(run: Run, host: Hosts, waited_s: float = 300.0, text: str = "") -> Show:
    """One task never registers with the coordinator: the others wait until the time is over and name it."""
    run.zero_steps = True
    run.spec.init_s = waited_s + 20.0

    def show(sheet: Sheet, log: JobLog) -> None:
        log.no_training = True
        missing = [run.hosts.index(name) for name in many(host)]
        names = "\n".join(f"/job:jax_worker/replica:0/task:{t}" for t in missing)
        begin = run.training_begin + 12.0
        for rank, name in enumerate(run.hosts):
            if rank in missing:
                continue
            log.say(begin, f"[Node {rank} @ {name}] Training subprocess started (pid={1000 + rank})", rank)
            asks = "Attempting to initialize the jax distributed system for GPU backend..."
            log.say(begin + 6.0 + 0.02 * rank, asks, rank)
            moment = begin + 6.0 + waited_s + float(run.rng.uniform(0, 1.0))
            said = text.replace("{glog}", glog(moment)).replace("{tasks}", names)
            said = said.replace("{there}", str(len(run.hosts) - len(missing))).replace("{all}", str(len(run.hosts)))
            log.say(moment, said.rstrip("\n"), rank)
            log.exits[rank] = 1

    return show


@fault
def plain_start(run: Run) -> Show:
    """An NVIDIA start that fails early: no probe of another maker's driver, no communicators yet."""

    def show(sheet: Sheet, log: JobLog) -> None:
        say = log.say

        def quieter(time: float, text: str, rank: int | None = None) -> None:
            if "UNKNOWN ERROR (303)" not in text and "MSCCL++" not in text:
                say(time, text, rank)

        log.say = quieter  # type: ignore[method-assign]

    return show


@fault
def slow_start(run: Run, factor: float, end: Place) -> Show:
    """The first steps are slow for no reason that anybody recorded; then it runs as it should."""
    run.slow(run.first, run.at(end), factor)
    return nothing


@fault
def dies_at_start(run: Run, text: str, after_s: float = 35.0) -> Show:
    """The trainer reads its arguments and ends at once, on all hosts, before it has set up anything."""
    run.zero_steps = True
    run.spec.init_s = after_s + 15.0

    def show(sheet: Sheet, log: JobLog) -> None:
        log.no_training = True
        for rank, name in enumerate(run.hosts):
            begin = run.training_begin + 6.0
            log.say(begin, f"[Node {rank} @ {name}] Training subprocess started (pid={1000 + rank})", rank)
            moment = begin + after_s + float(run.rng.uniform(0.0, 2.0))
            log.say(moment, filled(run, text, name, moment), rank)
            log.say(moment + 0.5, f"[Node {rank} @ {name}] Training subprocess exited with code 1", rank)
            log.exits[rank] = 1

    return show


@fault
def node_limits(run: Run, host: Hosts, low: str, usual: str, before_s: float = 60.0) -> Show:
    """The launcher prints every node's limits before the trainer starts; some nodes have others."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for rank, name in enumerate(run.hosts):
            log.say(run.steps_from - before_s, filled(run, low if name in many(host) else usual, name, run.start), rank)

    return show
