"""What the training program itself does: data, experts, compilation, loss."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Place, Show, fault
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


@fault
def input_stall(run: Run, factor: float, begin: Place, end: Place = 1.0) -> Show:
    """Steps wait for data: GPUs idle for part of every step, everywhere alike."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    run.await_data(first, last, 1.0 - 1.0 / factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        idle = 1.0 - 1.0 / factor
        drop = idle * (run.profile.spin_w - run.profile.idle_w)
        sheet.add("hw_gpu_power_watts", -drop, since, until)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)

    return show


@fault
def moe_routing(run: Run, begin: Place, factor: float, over: float = 0.3, jump: float = 0.6) -> Show:
    """Experts become unbalanced: the balance loss jumps and steps slow down gradually."""
    first = run.at(begin)
    n = run.spec.steps
    index = np.arange(n) + run.first
    grown = 1.0 + (factor - 1.0) * np.clip((index - first) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, np.where(index >= first, grown, 1.0))

    def show(sheet: Sheet, log: JobLog) -> None:
        balance = 0.0102 + run.rng.normal(0, 1e-4, n)
        balance[index >= first] *= 1.0 + jump
        sheet.scalar("learning_moe_lb_loss", np.round(balance, 6))
        # The time goes into larger expert batches, not into waiting: the GPUs draw what they drew before.
        lost = 1.0 - 1.0 / grown[: len(run.ends)]
        sheet.add(
            "hw_gpu_power_watts",
            run.profile.active_w - run.profile.spin_w,
            run.time_of(first),
            run.work_end,
            shape=lambda t: lost[np.clip(np.searchsorted(run.ends, t), 0, len(lost) - 1)],
        )

    return show


@fault
def recompilation(run: Run, begin: Place, every: int = 7, seconds: float = 55.0) -> Show:
    """The program is compiled again and again."""
    first = run.at(begin)
    hits = [s for s in range(first, run.at(1.0)) if (s - first) % every == 0]
    for s in hits:
        run.extra[s - run.first] += seconds * run.rng.uniform(0.9, 1.1)

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in hits:
            t = run.time_of(s) + 1.0
            log.everyone(t, "Compiling module jit_train_step for GPU")
            log.everyone(t + 0.5 * seconds, f"Compilation of jit_train_step took {seconds:.1f} s")
            sheet.scale("hw_gpu_power_watts", 0.35, t, t + seconds)

    return show


@fault
def nan_loss(run: Run, begin: Place) -> Show:
    """The loss is not a number any more; the steps go on."""
    first = run.at(begin)
    run.loss[first - run.first :] = np.nan

    def show(sheet: Sheet, log: JobLog) -> None:
        n = run.spec.steps
        grad = np.full(n, 0.9)
        grad[max(0, first - 1 - run.first) :] = np.nan
        sheet.scalar("learning_grad_norm", grad)
        sheet.scalar("learning_loss", np.round(run.loss, 3))

    return show


@fault
def loss_spike(run: Run, begin: Place, jump: float = 4.0) -> Show:
    """The loss rises and stays up, with a burst of the gradient norm."""
    first = run.at(begin) - run.first
    run.loss[first:] += jump * (1 - np.exp(-np.arange(len(run.loss) - first) / 4.0))

    def show(sheet: Sheet, log: JobLog) -> None:
        n = run.spec.steps
        grad = np.full(n, 0.9)
        grad[first - 1 : first + 12] = 25.0
        sheet.scalar("learning_raw_grad_norm", grad)
        sheet.scalar("learning_loss", np.round(run.loss, 3))

    return show
