"""What the ninth author's held-out set (`ab-`) needs beyond the rest: pinned limits, slow onsets, waves."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run

_RCCL_ONLY = re.compile(r"cuda_platform\.cc:51\] failed call to cuInit|NCCL WARN MSCCL\+\+")


def _grown(run: Run, first: int, last: int, factor: float, over: float) -> Floats:
    """Factors of steps [first, last): from 1 to `factor` within a share `over` of the run, then level."""
    steps = np.arange(max(0, last - first)) + 1.0
    grown: Floats = 1.0 + (factor - 1.0) * np.clip(steps / max(1.0, over * run.spec.steps), 0.0, 1.0)
    return grown


def _computing(run: Run) -> Callable[[Floats], Floats]:
    """1 while steps run, 0 while all wait for a save."""

    def shape(t: Floats) -> Floats:
        busy = ((t >= run.steps_from) & (t < run.work_end)).astype(float)
        for start, end, _ in run.saves:
            busy[(t >= start) & (t < end)] = 0.0
        return busy

    return shape


def _lost(run: Run) -> Callable[[Floats], Floats]:
    """The share of a step that is lost against full speed, by time; nothing while a save is written."""
    lost, computing = 1.0 - 1.0 / run.factor[: max(1, len(run.ends))], _computing(run)
    return lambda t: computing(t) * lost[np.clip(np.searchsorted(run.ends, t), 0, len(lost) - 1)]


def _wobble(speed: float, phase: float) -> Callable[[Floats], Floats]:
    """Between -1 and 1, never the same twice in a row."""
    return lambda t: np.sin(speed * t + phase) * np.cos(0.31 * t + phase)


def _starts(run: Run, begin: Place, end: Place, times: int, steps: int) -> list[int]:
    """Where some windows of steps begin, evenly over a part of the run."""
    places = np.linspace(run.at(begin), max(run.at(begin), run.at(end) - steps - 1), times)
    return [int(p) for p in places]


@fault
def cuda_words(run: Run) -> Show:
    """A log of NVIDIA machines: none of the lines that only ROCm and RCCL print."""

    def show(sheet: Sheet, log: JobLog) -> None:
        plain = log.say

        def say(time: float, text: str, rank: int | None = None) -> None:
            if not _RCCL_ONLY.search(text):
                plain(time, text.replace("on rocm:0", "on cuda:0"), rank)

        log.say = say  # type: ignore[method-assign]

    return show


@fault
def counter_jump(
    run: Run,
    metric: str,
    host: Hosts,
    at: Place,
    number: float = 1.0,
    gpu: int | None = None,
    device: int | None = None,
) -> Show:
    """A counter jumps once, a few seconds after a step began."""

    def show(sheet: Sheet, log: JobLog) -> None:
        pick: dict[str, Any] = {} if gpu is None else {"gpu": str(gpu)}
        if device is not None:
            pick["device"] = f"{run.spec.nic}_{device}"
        for name in many(host):
            sheet.count(metric, number, run.time_of(run.at(at)) + 4.0, name, **pick)

    return show


@fault
def fading_optic(
    run: Run, host: Hosts, factor: float, begin: Place, over: float = 0.5, device: int = 5, retx: float = 1100.0
) -> Show:
    """A transceiver gets dirtier or older: a port loses more and more packets, the steps get longer with it."""
    first, last = run.at(begin), run.at(1.0)
    run.slow(first, last, _grown(run, first, last, factor, over))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.work_end
        grows = ramp(
            since, max(60.0, run.time_of(run.at(min(1.0, (first - run.first) / run.spec.steps + over))) - since)
        )
        port = f"{run.spec.nic}_{device}"
        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.008)):
            sheet.rate(f"hw_rdma_{metric}_total", retx * share, since, until, only(host), shape=grows, device=port)

    return show


@fault
def congestion_waves(
    run: Run, factor: float, begin: Place, waves: int, steps: int, end: Place = 1.0, cnp: float = 2500.0
) -> Show:
    """Another tenant's job loads the spine now and then: all NICs get notifications at the same times."""
    starts = _starts(run, begin, end, waves, steps)
    for s in starts:
        run.slow(s, s + steps, 1.0 + (factor - 1.0) * float(run.rng.uniform(0.85, 1.15)))
    weights = run.rng.uniform(0.6, 1.4, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            for host, weight in zip(run.hosts, weights, strict=True):
                for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.95), ("rx_ecn_pkts", 2.0)):
                    sheet.rate(f"hw_rdma_{metric}_total", cnp * much * float(weight) / 8.0, since, until, host)

    return show


@fault
def supply_brake(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0) -> Show:
    """A server that lost a power supply limits its GPUs: power pinned at the limit, clocks hunt below it, cooler."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    cap = 5.0 * round(run.profile.active_w * factor**-1.6 / 5.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, phase = str(gpu), float(run.rng.uniform(0, 6.28))
                sheet.put("hw_gpu_power_watts", cap, since, until, name, gpu=card)
                sheet.add(
                    "hw_gpu_power_watts",
                    2.0,
                    since,
                    until,
                    name,
                    shape=_wobble(1.7, phase),
                    gpu=card,
                )
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, until, name, gpu=card)
                sheet.add("hw_gpu_clock_mhz", 45.0, since, until, name, shape=_wobble(0.9, phase), gpu=card)
                sheet.add("hw_gpu_temperature_celsius", -4.0, since, until, name, gpu=card)

    return show


@fault
def clocks_locked(run: Run, host: Hosts, factor: float, begin: Place = 0) -> Show:
    """Somebody locked a server's GPU clocks and forgot it: the clock stands still at one value, power varies below."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    locked = 15.0 * round(run.profile.clock_mhz / factor / 15.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first) if first > run.first else run.start
        waits = run.profile.active_w / factor + run.profile.spin_w * (1.0 - 1.0 / factor)
        less = run.profile.active_w * factor**-1.3 - waits
        for name in many(host):
            sheet.put("hw_gpu_clock_mhz", locked, since, run.work_end, name)
            sheet.add("hw_gpu_power_watts", less, since, run.work_end, name, shape=_computing(run))
            sheet.add("hw_gpu_temperature_celsius", -2.0, since, run.work_end, name, shape=_computing(run))

    return show


@fault
def rack_warms(run: Run, hosts: Hosts, factor: float, begin: Place, over: float = 0.2, peak: float = 103.0) -> Show:
    """A rack's cooling weakens: its servers warm up over many minutes to the limit, then give up clock."""
    first, last = run.at(begin), run.at(1.0)
    run.slow(first, last, _grown(run, first, last, factor, over))
    lean = {h: float(run.rng.uniform(0.93, 1.0)) for h in many(hosts)}

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.work_end
        full = run.time_of(run.at(min(1.0, (first - run.first) / run.spec.steps + over)))
        lost = _lost(run)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card = str(gpu)
                # The sheet cools a GPU that waits; these do not wait, and they are hot.
                hotter = (peak - run.profile.hot_c) * lean[name] - float(run.rng.uniform(0, 3))
                heat = ramp(since - 900.0, max(300.0, full - since) + 600.0)
                sheet.add("hw_gpu_temperature_celsius", hotter, since - 900.0, until, name, shape=heat, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", 30.0, since, until, name, shape=lost, gpu=card)
                deep = float(run.rng.uniform(0.9, 1.15))
                sheet.add("hw_gpu_clock_mhz", -deep * run.profile.clock_mhz, since, until, name, shape=lost, gpu=card)
                more = 0.8 * (run.profile.active_w - run.profile.spin_w)
                sheet.add("hw_gpu_power_watts", more, since, until, name, shape=lost, gpu=card)

    return show


@fault
def scan_windows(
    run: Run, factor: float, begin: Place, times: int, steps: int, procs: float = 45.0, hosts: Hosts | None = None
) -> Show:
    """A cron job (a security scan, an index of the disk) runs on the hosts at the same times and takes processors."""
    starts = _starts(run, begin, 1.0, times, steps)
    for s in starts:
        run.slow(s, s + steps, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            for name in many(hosts) if hosts else run.hosts:
                mine = procs * float(run.rng.uniform(0.85, 1.15))
                sheet.add("hw_procs_running", mine, since, until, name)
                sheet.scale("hw_context_switches_total", 1.8, since, until, name)
                sheet.add("ray_node_cpu_utilization", 30.0, since, until, name)

    return show


@fault
def starving(run: Run, factor: float, begin: Place, over: float = 0.4) -> Show:
    """Batches come later and later (a cold storage tier): every host's GPUs idle for a growing part of each step."""
    first, last = run.at(begin), run.at(1.0)
    grown = _grown(run, first, last, factor, over)
    run.slow(first, last, grown)
    for s in range(first, last, 5):
        share = 1.0 - 1.0 / float(grown[min(s - first, len(grown) - 1)])
        run.await_data(s, min(s + 5, last), share)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, lost = run.time_of(first), _lost(run)
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.work_end, shape=lost)
        sheet.add("ray_node_gpus_utilization", -100.0, since, run.work_end, shape=lost)
        sheet.add("hw_procs_blocked", 9.0, since, run.work_end, shape=lost)

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
def blocked_reader(run: Run, host: Hosts, at: Place, silent_s: float) -> Show:
    """One host's reader never returns: its GPUs have nothing to do, everybody else waits in the next collective."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.work_end + 2.0
        sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.scale("hw_gpu_clock_mhz", 0.2, since, run.end, name)
        sheet.add("hw_procs_blocked", 24.0, since, run.end, name)
        sheet.add("hw_io_pressure_full_pct", 62.0, since, run.end, name)
        sheet.add("hw_io_pressure_some_pct", 71.0, since, run.end, name)
        sheet.add("hw_procs_running", -8.0, since, run.end, name)

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
def reroute_blip(run: Run, at: Place, seconds: float = 25.0) -> Show:
    """A spine switch restarts: for half a minute all hosts time out and send again, then the routes are new."""
    step = run.at(at)
    run.extra[step - run.first] += seconds

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(step) + 1.0
        for host in run.hosts:
            much = float(run.rng.uniform(40.0, 90.0))
            for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.9), ("tx_ack_timeout", 0.05)):
                sheet.rate(f"hw_rdma_{metric}_total", much * share, since, since + seconds, host)

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
