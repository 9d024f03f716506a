"""Losses, routing, evaluation, and slowness without a recorded reason."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, nothing
from trackwalker.lab.faults.shapes import cooler_when_waiting, lost_since, slows_over
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Floats, Run


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


@fault
def third_spike(run: Run, begin: Place, jump: float = 5.5) -> Show:
    """The loss spikes and comes back, twice; the third time it stays up there."""
    last = run.at(begin) - run.first
    firsts = [int(last * 0.45), int(last * 0.75)]
    steps = np.arange(len(run.loss))
    run.loss += run.rng.normal(0, 0.015, len(run.loss))
    for s, much in zip(firsts, (0.5, 1.1), strict=True):
        run.loss += np.where(steps >= s, much * np.exp(-(steps - s).clip(0) / 3.0), 0.0)
    run.loss += np.where(steps >= last, jump * (1.0 - np.exp(-(steps - last).clip(0) / 9.0)), 0.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        grad = 0.7 + run.rng.normal(0, 0.03, run.spec.steps)
        for s, much in ((firsts[0], 5.0), (firsts[1], 9.0)):
            grad[s : s + 2] += [much, much / 3.0]
        grad[last:] += 14.0 * np.exp(-(steps[last:] - last) / 40.0) + 2.5
        sheet.scalar("learning_grad_norm", np.round(grad, 4))
        sheet.scalar("learning_raw_grad_norm", np.round(grad * 1.05, 4))
        sheet.scalar("learning_loss", np.round(run.loss + run.rng.normal(0, 0.012, run.spec.steps), 3))

    return show


@fault
def loss_runaway(run: Run, begin: Place, to: float = 7.4, spikes: int = 5) -> Show:
    """Too high a learning rate: bursts of the gradient norm, each larger; after each the loss stands higher."""
    first = run.at(begin) - run.first
    places = np.linspace(first, first + 0.6 * (run.spec.steps - first), spikes).astype(int)
    rise = (to - float(run.loss[first])) / spikes
    grad: Floats = 0.85 + run.rng.normal(0, 0.02, run.spec.steps)
    for number, place in enumerate(places.tolist()):
        after = np.arange(run.spec.steps - place)
        run.loss[place:] += rise * (1 - np.exp(-after / 3.0)) + 0.5 * rise * np.exp(-after / 6.0) * (after > 0)
        grad[place:] += 6.0 * (number + 1) * np.exp(-after / 4.0) + 0.25

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.scalar("learning_raw_grad_norm", np.round(grad, 3))
        clipped: Floats = np.minimum(grad, 1.0)
        sheet.scalar("learning_grad_norm", np.round(clipped, 3))
        sheet.scalar("learning_loss", np.round(run.loss + run.rng.normal(0, 0.012, run.spec.steps), 3))

    return show


@fault
def loss_creeps(run: Run, begin: Place, to: float, over: float = 0.3) -> Show:
    """The loss turns and climbs for a third of the run, with the gradient norm: too high a learning rate."""
    first = run.at(begin) - run.first
    climbed = np.clip(np.arange(len(run.loss) - first) / max(1.0, over * run.spec.steps), 0.0, 1.0)
    run.loss[first:] += (to - run.loss[first]) * climbed

    def show(sheet: Sheet, log: JobLog) -> None:
        grad = np.full(run.spec.steps, 0.8)
        grad[first:] += 6.0 * climbed
        sheet.scalar("learning_grad_norm", np.round(grad, 3))
        sheet.scalar("learning_loss", np.round(run.loss, 3))

    return show


@fault
def evaluation(run: Run, every: int, seconds: float) -> Show:
    """Every so many steps the model is evaluated, as it was configured; the GPUs work all the while."""
    hits = [s for s in range(run.first, run.at(1.0)) if s and s % every == 0]
    for s in hits:
        run.extra[s - run.first] += seconds * float(run.rng.uniform(0.97, 1.03))
    run.spec.config |= {"eval_interval": str(every), "eval_steps": "20"}

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in hits:
            if s - run.first < len(run.ends):
                done, loss = run.time_of(s + 1) - 1.0, float(run.loss[s - run.first]) + 0.04
                log.say(done, f"eval metrics after step: {s}, loss={loss:.3f}, total_weights=1966080.0", 0)

    return show


@fault
def router_drift(run: Run, begin: Place, factor: float, over: float = 0.45, rise: float = 0.9) -> Show:
    """The router prefers fewer experts from hour to hour: balance loss and step time climb together, power stays."""
    first = slows_over(run, begin, over, factor)
    n = run.spec.steps
    grown = np.clip((np.arange(n) + run.first - first) / max(1.0, over * n), 0.0, 1.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        balance = 0.0102 * (1.0 + rise * grown) + run.rng.normal(0, 1.2e-4, n)
        sheet.scalar("learning_moe_lb_loss", np.round(balance, 6))
        more = run.profile.active_w - run.profile.spin_w
        since, lost = run.time_of(first), lost_since(run, first)
        sheet.add("hw_gpu_power_watts", more, since, run.work_end, shape=lost)
        sheet.add("hw_gpu_temperature_celsius", cooler_when_waiting(run), since, run.work_end, shape=lost)

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
def slower(run: Run, factor: float, begin: Place, end: Place = 1.0, over: float = 0.0) -> Show:
    """Steps take longer and nothing that is collected says why; `over` (of the run) lets it grow slowly."""
    first, last = run.at(begin), run.at(end)
    index = np.arange(run.spec.steps) + run.first
    grown = np.clip((index - first + 1) / max(1.0, over * run.spec.steps), 0.0, 1.0)
    inside = (index >= first) & (index < last)
    run.factor = np.maximum(run.factor, np.where(inside, 1.0 + (factor - 1.0) * grown, 1.0))
    return nothing
