"""Rarer ends, and rarer ways to be without evidence, for scenarios that tuning never sees."""

from __future__ import annotations

from copy import copy

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run, make_hosts


@fault
def save_cut(run: Run, lasted_s: float) -> Show:
    """A save begins after the last step and the end of the run comes before it is done."""
    run.silent_s = max(run.silent_s, lasted_s)
    if run.hang_step is not None and run.hang_step >= run.first + run.spec.steps:
        run.hang_step = None  # nobody spins in a collective: all are writing

    def show(sheet: Sheet, log: JobLog) -> None:
        log.run = copy(run)
        log.run.saves = list(run.saves)  # the log never says that it was saved
        run.saves.append((run.work_end + 1.0, run.end, run.first + len(run.ends) - 1))

    return show


@fault
def no_exit(run: Run, host: Hosts) -> Show:
    """A node that is gone reports no exit."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            log.exits[run.hosts.index(name)] = 0

    return show


@fault
def never_scraped(run: Run, host: Hosts) -> Show:
    """A host whose exporters never answered and whose worker log was not kept."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in many(host):
            sheet.down(name, 0.0, np.inf)
            log.hide_workers.add(run.hosts.index(name))

    return show


@fault
def tail(run: Run, seconds: float) -> Show:
    """After the last step the teardown takes its time."""
    run.silent_s = max(run.silent_s, float(seconds))
    return nothing


@fault
def empty_database(run: Run) -> Show:
    """Prometheus never started, so nothing was stored."""

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.only_between(0.0, 0.0)
        log.say(run.training_begin + 30.0, "[Prometheus] FAILED: could not bind any port", 0)

    return show


@fault
def foreign_database(run: Run, earlier_s: float = 0.0) -> Show:
    """The database beside the log is another job's: of other nodes, or (earlier) of the same nodes before."""

    def show(sheet: Sheet, log: JobLog) -> None:
        mine = copy(run)
        log.run = mine
        mine.loss = run.loss * 0.8 + 0.9
        if earlier_s:
            mine.start = run.start + earlier_s
            mine.ends = run.ends + earlier_s
            mine.saves = [(a + earlier_s, b + earlier_s, s) for a, b, s in run.saves]
        else:
            names = make_hosts(3 * len(run.hosts), np.random.default_rng(int(run.job_id)))
            mine.hosts = [h for h in names if h not in run.hosts][: len(run.hosts)]

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
def loss_bump(run: Run, at: Place, jump: float = 1.2, steps: int = 9) -> Show:
    """The loss jumps and comes back by itself."""
    first = run.at(at) - run.first
    after = np.arange(len(run.loss) - first)
    run.loss[first:] += jump * np.exp(-after / (steps / 3.0))

    def show(sheet: Sheet, log: JobLog) -> None:
        grad = 0.85 + run.rng.normal(0, 0.02, run.spec.steps)
        grad[first : first + 3] = [6.0, 3.1, 1.4]
        sheet.scalar("learning_raw_grad_norm", np.round(grad, 4))
        sheet.scalar("learning_loss", np.round(run.loss + run.rng.normal(0, 0.01, run.spec.steps), 3))

    return show
