"""The fault library: what can happen to a run, and where it shows.

A fault first changes the run (how slow, where it stops), then, once the times are known, shows itself in metrics and log.
Places in the run are fractions of its steps (`0.4`) or step numbers (`97`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet import Sheet, ramp
from trackwalker.lab.world import Run

Show = Callable[[Sheet, JobLog], None]
Place = float | int

FAULTS: dict[str, Callable[..., Show]] = {}


def fault(build: Callable[..., Show]) -> Callable[..., Show]:
    """Register a fault under its function's name, with dashes."""
    FAULTS[build.__name__.replace("_", "-")] = build
    return build


def _many(hosts: Any) -> list[str]:
    return [hosts] if isinstance(hosts, str) else list(hosts)


# --- slow: network ---------------------------------------------------------------------------------------------------


@fault
def nic(
    run: Run,
    hosts: Any,
    factor: float,
    begin: Place = 0,
    end: Place = 1.0,
    device: int = 3,
    retx: float = 900.0,
    exhausted: int = 0,
) -> Show:
    """NICs retransmit: every collective waits for them."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for host in _many(hosts):
            d = {"device": f"{run.spec.nic}_{device}"}
            for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.95), ("tx_ack_timeout", 0.004)):
                sheet.rate(f"hw_rdma_{metric}_total", retx * share, since, until, host, **d)
            if exhausted:
                sheet.rate("hw_rdma_req_tx_retry_excd_err_total", exhausted / (until - since), since, until, host, **d)

    return show


@fault
def link_down(run: Run, host: Any, factor: float, begin: Place, device: int = 2) -> Show:
    """A port goes down; its traffic moves to the others."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for name in _many(host):
            d = {"device": f"{run.spec.nic}_{device}"}
            sheet.put("hw_rdma_port_state", 0, since, run.end, name, **d)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, run.end, name, **d)

    return show


@fault
def congestion(
    run: Run, factor: float, begin: Place, end: Place = 1.0, cnp: float = 4000.0, share: float = 1.0
) -> Show:
    """The fabric is congested: notifications everywhere, nobody stands out."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    hit = run.hosts[: max(1, round(share * len(run.hosts)))]
    weights = run.rng.uniform(0.7, 1.3, len(hit))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for host, weight in zip(hit, weights, strict=True):
            for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.9), ("rx_ecn_pkts", 2.2)):
                sheet.rate(f"hw_rdma_{metric}_total", cnp * much * weight, since, until, host)

    return show


# --- slow: GPU -------------------------------------------------------------------------------------------------------


@fault
def thermal(run: Run, host: Any, gpu: int, factor: float, begin: Place, end: Place = 1.0, peak: float = 101.0) -> Show:
    """One GPU overheats and clocks down; the others wait and cool."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, pick = run.time_of(first), run.time_of(last), {"gpu": str(gpu)}
        (name,) = _many(host)
        hotter = peak - run.profile.hot_c + (1 - 1 / factor) * 25.0
        sheet.add("hw_gpu_temperature_celsius", hotter, since - 240, until, name, shape=ramp(since - 240, 300), **pick)
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.05, since, until, name, **pick)
        sheet.add("hw_gpu_power_watts", 60.0, since, until, name, **pick)

    return show


@fault
def power_cap(run: Run, factor: float, begin: Place = 0, hosts: Any = None, share: float = 0.75) -> Show:
    """A lower power limit: power flat at the cap, clocks down, cool."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        cap = run.profile.active_w * share
        for host in _many(hosts) if hosts else run.hosts:
            sheet.put("hw_gpu_power_watts", cap, since, run.work_end, host)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, run.work_end, host)
            sheet.add("hw_gpu_temperature_celsius", -6.0, since, run.work_end, host)

    return show


@fault
def clock(run: Run, host: Any, factor: float, begin: Place, gpu: int | None = None) -> Show:
    """Clocks stay low without heat or a power limit."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        pick = {} if gpu is None else {"gpu": str(gpu)}
        for name in _many(host):
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.04, since, run.work_end, name, **pick)
            sheet.scale("hw_gpu_power_watts", 0.9, since, run.work_end, name, **pick)

    return show


# --- slow: host, storage, data, training --------------------------------------------------------------------------------


@fault
def cpu_hog(run: Run, hosts: Any, factor: float, begin: Place, end: Place = 1.0, procs: float = 64.0) -> Show:
    """Another program takes the CPUs of some hosts."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for host in _many(hosts):
            sheet.add("hw_procs_running", procs, since, until, host)
            sheet.scale("hw_context_switches_total", 2.0, since, until, host)

    return show


@fault
def thread_leak(run: Run, procs: float = 17.0, factor: float = 1.0103) -> Show:
    """Polling threads left behind by a restore: a little slower from the first step, the same on all hosts."""
    run.slow(run.first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.add("hw_procs_running", procs, run.steps_from, run.work_end)

    return show


@fault
def input_stall(run: Run, factor: float, begin: Place, end: Place = 1.0) -> Show:
    """Steps wait for data: GPUs idle for part of every step, everywhere alike."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        idle = 1.0 - 1.0 / factor
        drop = idle * (run.profile.spin_w - run.profile.idle_w)
        sheet.add("hw_gpu_power_watts", -drop, since, until)
        sheet.add("ray_node_gpus_utilization", -100.0 * idle, since, until)

    return show


@fault
def slow_storage(run: Run, growth: list[float]) -> Show:
    """Saves take longer and longer."""
    run.save_growth = np.array(growth, dtype=float)

    def show(sheet: Sheet, log: JobLog) -> None:
        for start, end, _ in run.saves:
            for host in run.writers:
                sheet.add("hw_io_pressure_full_pct", 20.0, start, end, host)
                sheet.add("hw_procs_blocked", 8.0, start, end, host)

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
        base = 0.0102 + run.rng.normal(0, 1e-4, n)
        sheet.scalar("learning_moe_lb_loss", np.round(np.where(index >= first, base * (1.0 + jump), base), 6))

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
def blip(run: Run, at: Place, seconds: float = 15.0, host: Any = None) -> Show:
    """One slow step, perhaps with a coincident burst on one NIC."""
    step = run.at(at)
    run.extra[step - run.first] += seconds

    def show(sheet: Sheet, log: JobLog) -> None:
        t = run.time_of(step)
        for name in _many(host) if host else []:
            sheet.rate("hw_rdma_tx_retx_pkts_total", 500.0, t, t + 20.0, name, device=f"{run.spec.nic}_1")

    return show


@fault
def profiler(run: Run, at: int = 5, steps: int = 3) -> Show:
    """The profiler records some steps and writes its dump in the last."""
    for s in range(at, at + steps):
        run.extra[s - run.first] += 0.08 * run.spec.step_s
    run.extra[at + steps - run.first] += 0.5 * run.spec.step_s
    run.spec.config |= {"profiler": "xplane", "skip_first_n_steps_for_profiler": str(at), "profiler_steps": str(steps)}

    return lambda sheet, log: None


@fault
def nan_loss(run: Run, begin: Place) -> Show:
    """The loss is not a number any more; the steps go on."""
    first = run.at(begin)
    run.loss[first - run.first :] = np.nan

    def show(sheet: Sheet, log: JobLog) -> None:
        n = run.spec.steps
        grad = np.where(np.arange(n) + run.first >= first - 1, np.nan, 0.9)
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


# --- stop ------------------------------------------------------------------------------------------------------------


@fault
def hang(run: Run, at: Place, silent_s: float) -> Show:
    """All ranks wait in a collective that does not end."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s
    return lambda sheet, log: None


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
def node_death(run: Run, host: Any, at: Place, silent_s: float) -> Show:
    """A node vanishes; the others wait for it."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s

    def show(sheet: Sheet, log: JobLog) -> None:
        (name,) = _many(host)
        sheet.gone(name, run.work_end + 4.0)
        log.mute.add(run.hosts.index(name))
        log.hide_workers.add(run.hosts.index(name))

    return show


@fault
def process_death(run: Run, host: Any, at: Place, silent_s: float, code: int = 137, text: str = "") -> Show:
    """A training process dies on a living node."""
    run.hang_step = run.at(at)
    run.silent_s = silent_s

    def show(sheet: Sheet, log: JobLog) -> None:
        (name,) = _many(host)
        rank = run.hosts.index(name)
        sheet.process_gone(name, run.work_end + 4.0)
        log.exits[rank] = code
        log.mute.add(rank)
        if text:
            log.say(run.work_end + 5.0, text, rank)

    return show


@fault
def heartbeat(run: Run, hosts: Any, wait_s: float = 0.0) -> Show:
    """The coordination service declares tasks dead."""
    run.silent_s = max(run.silent_s, wait_s, 20.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        log.accused = sorted(run.hosts.index(h) for h in _many(hosts))

    return show


@fault
def crash(
    run: Run,
    text: str,
    host: Any = None,
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
        ranks = [run.hosts.index(h) for h in _many(host)] if host else list(range(len(run.hosts)))
        for rank in ranks:
            filled = text.replace("{host}", run.hosts[rank]).replace("{rank}", str(rank)).rstrip("\n")
            log.say(time + float(run.rng.uniform(0, 0.5)), filled, None if launcher else rank)
            log.exits[rank] = code
            sheet.process_gone(run.hosts[rank], time)
        if others:
            log.everyone(time + 4.0, others.rstrip("\n"), but=set(ranks))

    return show


@fault
def note(run: Run, text: str, at: Place = 0.5, host: Any = None, launcher: bool = False) -> Show:
    """Lines that say something, without consequence for the run."""

    def show(sheet: Sheet, log: JobLog) -> None:
        time = run.time_of(run.at(at)) + 0.5
        for name in _many(host) if host else run.hosts[:1]:
            log.say(time, text.replace("{host}", name).rstrip("\n"), None if launcher else run.hosts.index(name))

    return show


@fault
def stage_failure(run: Run, stage: str, text: str, host: Any = None, took_s: float = 900.0) -> Show:
    """The run ends in a stage before training."""
    run.zero_steps = True

    def show(sheet: Sheet, log: JobLog) -> None:
        log.no_training = True
        ranks = [run.hosts.index(h) for h in _many(host)] if host else list(range(len(run.hosts)))
        for rank in ranks:
            log.say(run.start + 39.0, text.replace("{host}", run.hosts[rank]).rstrip("\n"), rank)
            log.exits[rank] = 1
        log.say(run.start + 59.5, f"== {stage} ==")
        log.reason = stage

    return show


# --- memory and hardware -----------------------------------------------------------------------------------------------


@fault
def host_oom(run: Run, host: Any, at: Place, leak: bool = False, limit_gb: float = 2160.0) -> Show:
    """The kernel kills the trainer of one host: its memory ran out slowly (leak) or at a save."""
    step = run.at(at)
    run.hang_step = step
    run.silent_s = max(run.silent_s, 60.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        (name,) = _many(host)
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
            f"slurmstepd: error: Detected 1 oom_kill event in StepId={run.job_id}.3. Some of the step tasks have been OOM Killed.",
        )
        log.say(dies, f"[Node {rank} @ {name}] Training subprocess killed by SIGKILL (signal 9)", rank)

    return show


@fault
def gpu_error(
    run: Run, host: Any, gpu: int, at: Place, metric: str = "hw_gpu_ras_umc_ue_total", text: str = "", code: int = 134
) -> Show:
    """An uncorrectable GPU error ends one rank."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, 90.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        (name,) = _many(host)
        rank, dies = run.hosts.index(name), run.work_end + 6.0
        sheet.count(metric, 2.0, dies - 20, name, gpu=str(gpu))
        sheet.add("hw_dmesg_gpu_errors_total", 4.0, dies - 20, run.end, name)
        sheet.process_gone(name, dies)
        log.exits[rank] = code
        if text:
            log.say(dies, text.replace("{host}", name), rank)
        log.say(dies + 1, f"[Node {rank} @ {name}] Training subprocess killed by SIGABRT (signal 6)", rank)

    return show


@fault
def driver_reporting(run: Run, host: Any, begin: Place) -> Show:
    """The driver's error reporting hangs: monitoring suffers, training does not."""

    def show(sheet: Sheet, log: JobLog) -> None:
        (name,) = _many(host)
        since = run.time_of(run.at(begin))
        sheet.add("hw_dmesg_gpu_errors_total", 7.0, since, run.end, name)
        sheet.add("hw_scrape_duration_seconds", 9.7, since, run.end, name)

    return show


@fault
def correctable(run: Run, host: Any, gpu: int, per_hour: float, begin: Place = 0) -> Show:
    """Correctable memory errors accumulate."""

    def show(sheet: Sheet, log: JobLog) -> None:
        (name,) = _many(host)
        sheet.rate(
            "hw_gpu_ras_umc_ce_total", per_hour / 3600.0, run.time_of(run.at(begin)), run.end, name, gpu=str(gpu)
        )

    return show


# --- looks bad, is normal; the observer itself ---------------------------------------------------------------------------


@fault
def old_counters(run: Run, host: Any, retx: float = 90e6, ce: float = 40.0, gpu: int = 4) -> Show:
    """Counters that were high before the job began."""

    def show(sheet: Sheet, log: JobLog) -> None:
        (name,) = _many(host)
        sheet.lifetime("hw_rdma_tx_retx_pkts_total", name, retx, f"{run.spec.nic}_2")
        sheet.lifetime("hw_gpu_ras_umc_ce_total", name, ce, str(gpu))
        log.say(run.start + 56, f"{name}: GPU[{gpu}]: RAS INFO UMC CE={ce:.0f} UE=0", run.hosts.index(name))

    return show


@fault
def tcp_noise(run: Run, per_s: float = 2500.0, hosts: Any = None) -> Show:
    """Storage traffic loses TCP packets for hours."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for host in _many(hosts) if hosts else run.writers:
            sheet.rate("hw_tcp_retransmits_total", per_s, run.steps_from, run.end, host)

    return show


@fault
def power_spread(run: Run, watts: float = 60.0) -> Show:
    """GPUs differ: the natural spread of a batch of chips."""
    offsets = run.rng.uniform(-watts / 2, watts / 2, (len(run.hosts), run.spec.gpus))

    def show(sheet: Sheet, log: JobLog) -> None:
        for i, host in enumerate(run.hosts):
            for gpu in range(run.spec.gpus):
                sheet.add(
                    "hw_gpu_power_watts", float(offsets[i, gpu]), run.steps_from, run.work_end, host, gpu=str(gpu)
                )

    return show


@fault
def mild_cnp(run: Run, hosts: Any, per_s: float = 60.0) -> Show:
    """Some congestion notifications on some hosts, from the beginning."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for host in _many(hosts):
            sheet.rate("hw_rdma_rx_cnp_pkts_total", per_s, run.steps_from, run.end, host)

    return show


@fault
def ghost(run: Run, host: Any, begin: Place, end: Place = 1.0) -> Show:
    """An exporter repeats itself."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in _many(host):
            sheet.freeze(name, run.time_of(run.at(begin)), run.end if end == 1.0 else run.time_of(run.at(end)))

    return show


@fault
def unscraped(run: Run, host: Any, begin: Place, end: Place) -> Show:
    """A host cannot be scraped for a while; training goes on."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for name in _many(host):
            sheet.down(name, run.time_of(run.at(begin)), run.time_of(run.at(end)))

    return show


@fault
def not_exported(run: Run, metrics: list[str], host: Any = None) -> Show:
    """Metrics this cluster does not have."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for pattern in metrics:
            for name in _many(host) if host else [None]:
                sheet.absent(pattern, name)

    return show


@fault
def database_ends(run: Run, at: Place) -> Show:
    """The database holds nothing after a moment."""

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.only_between(run.start, run.time_of(run.at(at)))

    return show
