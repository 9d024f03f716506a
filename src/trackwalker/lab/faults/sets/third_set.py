"""What the third held-out set needs beyond the rest: one host's loader, flapping ports with victims, evaluation."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Run


@fault
def host_loader(run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0) -> Show:
    """One host's input pipeline is slow: its GPUs idle until their batch comes, all others wait."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    run.await_data(first, last, 1.0 - 1.0 / factor, many(host))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, idle = run.time_of(first), run.time_of(last), 1.0 - 1.0 / factor
        for name in many(host):
            sheet.add("hw_gpu_power_watts", -idle * (run.profile.spin_w - run.profile.idle_w), since, until, name)
            sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until, name)
            sheet.add("hw_procs_blocked", 7.0, since, until, name)
            sheet.add("hw_io_pressure_full_pct", 30.0, since, until, name)
            sheet.add("hw_io_pressure_some_pct", 38.0, since, until, name)

    return show


@fault
def flapping_port(
    run: Run, host: Hosts, victims: Hosts, factor: float, times: int, begin: Place, end: Place = 1.0, device: int = 4
) -> Show:
    """A port goes down and comes back again and again; who sends to it retransmits, the port itself hardly."""
    starts = np.linspace(run.at(begin), run.at(end) - 4, times).astype(int).tolist()
    for s in starts:
        run.slow(s, s + 3, factor * float(run.rng.uniform(0.95, 1.05)))

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port = only(host), f"{run.spec.nic}_{device}"
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + 3)
            sheet.put("hw_rdma_port_state", 0.0, since, until - 10.0, name, device=port)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, until - 10.0, name, device=port)
            for victim in many(victims):
                much = 700.0 * float(run.rng.uniform(0.6, 1.4))
                sheet.rate("hw_rdma_tx_retx_pkts_total", much, since, until, victim, device=port)
                sheet.rate("hw_rdma_tx_ack_timeout_total", 0.01 * much, since, until, victim, device=port)

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
def quiet_straggler(run: Run, host: Hosts, gpu: int, factor: float, begin: Place) -> Show:
    """One GPU computes slower at normal clocks (weak memory): it works on while all others wait for it."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        more = (1.0 - 1.0 / factor) * (run.profile.active_w - run.profile.spin_w)
        since, name, card = run.time_of(first), only(host), str(gpu)
        sheet.add("hw_gpu_power_watts", 0.9 * more, since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", 4.0, since, run.work_end, name, shape=ramp(since, 120), gpu=card)

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
