"""What the tenth author's held-out set (`ac-`) needs beyond the rest: slow decay, waves, racks, one stuck host."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Shape, Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _grown(run: Run, first: int, last: int, power: float) -> Floats:
    """Per step: how far something has grown, 0 before `first`, 1 at `last`."""
    index = np.arange(run.spec.steps) + run.first
    return np.clip((index - first + 1) / max(1, last - first), 0.0, 1.0) ** power


def _curve(since: float, until: float, power: float) -> Shape:
    """The same growth in time."""
    return lambda t: np.clip((t - since) / max(until - since, 1.0), 0.0, 1.0) ** power


def _waited(run: Run, factor: float) -> float:
    """Watts that a host draws less while it waits for a slower one."""
    return (1.0 - 1.0 / factor) * (run.profile.active_w - run.profile.spin_w)


@fault
def ac_optic_decay(
    run: Run, host: Hosts, factor: float, begin: Place, device: int = 5, retx: float = 1800.0, power: float = 1.4
) -> Show:
    """A transceiver ages: bit errors become lost packets, more from hour to hour, and every step waits longer."""
    first = run.at(begin)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * _grown(run, first, run.at(1.0), power))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, port = run.time_of(first), f"{run.spec.nic}_{device}"
        shape = _curve(since, run.work_end, power)
        for metric, share in (("tx_retx_pkts", 1.0), ("ccl_tx_retx_pkts", 0.93), ("tx_ack_timeout", 0.005)):
            sheet.rate(
                f"hw_rdma_{metric}_total", retx * share, since, run.work_end, only(host), shape=shape, device=port
            )

    return show


@fault
def ac_congestion_waves(
    run: Run, factor: float, waves: int, steps: int, begin: Place, end: Place = 0.97, cnp: float = 3000.0
) -> Show:
    """Another tenant's traffic comes and goes on the spine: all hosts are told to slow down, then not."""
    starts = np.linspace(run.at(begin), run.at(end) - steps, waves).astype(int).tolist()
    for s in starts:
        run.slow(s, s + steps, factor * run.rng.uniform(0.96, 1.04, min(steps, run.first + run.spec.steps - s)))
    weights = run.rng.uniform(0.75, 1.25, len(run.hosts))

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            for host, weight in zip(run.hosts, weights, strict=True):
                for metric, much in (("rx_cnp_pkts", 1.0), ("tx_cnp_pkts", 0.95), ("rx_ecn_pkts", 2.4)):
                    sheet.rate(f"hw_rdma_{metric}_total", cnp * much * float(weight), since, until, host)

    return show


@fault
def ac_creeping_heat(run: Run, hosts: Hosts, factor: float, begin: Place, peak: float = 100.0) -> Show:
    """The coolant of a rack warms for a long time; past the limit all GPUs of its hosts clock down, ever more."""
    first = run.at(begin)
    middle = first + (run.at(1.0) - first) // 3
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * _grown(run, middle, run.at(1.0), 0.7))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, limit, end = run.time_of(first), run.time_of(middle), run.work_end
        for name in many(hosts):
            for card in range(run.spec.gpus):
                gpu, less = str(card), float(run.rng.uniform(0, 4))
                # The simulator cools a host that waits; these do not wait.
                hotter = peak - run.profile.hot_c - less
                sheet.add(
                    "hw_gpu_temperature_celsius", hotter, since, end, name, shape=ramp(since, limit - since), gpu=gpu
                )
                cooled = _waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38)
                shape = _curve(limit, end, 0.7)
                sheet.add("hw_gpu_temperature_celsius", cooled, limit, end, name, shape=shape, gpu=gpu)
                slow = 1.0 / factor - 0.02 + float(run.rng.uniform(0, 0.04))
                sheet.scale("hw_gpu_clock_mhz", slow, limit, end, name, shape=shape, gpu=gpu)
                more = _waited(run, factor) - 0.06 * run.profile.active_w
                sheet.add("hw_gpu_power_watts", more, limit, end, name, shape=shape, gpu=gpu)

    return show


@fault
def ac_rack_cap(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, share: float = 0.74) -> Show:
    """The power controller of a rack lowers the limit of its GPUs: they compute all the time, at less power."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        want = share * run.profile.active_w - (run.profile.active_w - _waited(run, factor))
        for name in many(hosts):
            sheet.add("hw_gpu_power_watts", want, since, until, name)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, until, name)
            sheet.add("hw_gpu_temperature_celsius", -5.0, since, until, name)

    return show


@fault
def ac_pinned_clock(run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place = 0) -> Show:
    """Some GPUs of a host run at a fixed low clock (left over from somebody's `-lgc`): cool, frugal."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for card in gpus:
            gpu = str(card % run.spec.gpus)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.02, since, run.work_end, only(host), gpu=gpu)
            less = _waited(run, factor) - 0.3 * run.profile.active_w
            sheet.add("hw_gpu_power_watts", less, since, run.work_end, only(host), gpu=gpu)
            sheet.add("hw_gpu_temperature_celsius", -6.0, since, run.work_end, only(host), gpu=gpu)

    return show


@fault
def ac_cron_hog(run: Run, hosts: Hosts, factor: float, starts: list[float], steps: int, procs: float = 90.0) -> Show:
    """A scheduled job of the operating system takes the CPUs of some hosts every so often."""
    places = [run.at(s) for s in starts]
    for s in places:
        run.slow(s, s + steps, factor * float(run.rng.uniform(0.97, 1.03)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in places:
            since, until = run.time_of(s), run.time_of(s + steps)
            for name in many(hosts):
                sheet.add("hw_procs_running", procs * float(run.rng.uniform(0.9, 1.1)), since, until, name)
                sheet.scale("hw_context_switches_total", 2.6, since, until, name)
                sheet.add("ray_node_cpu_utilization", 52.0, since, until, name)

    return show


@fault
def ac_ragged_reads(run: Run, begin: Place, share: float, seconds: float, end: Place = 1.0) -> Show:
    """Now and then a batch comes late, a little or very late: the file system of the data set is cold or busy."""
    first, last = run.at(begin), min(run.at(end), run.first + run.spec.steps)
    hits = [s for s in range(first, last) if run.rng.random() < share]
    lengths = [seconds * float(run.rng.gamma(3.0, 1 / 3.0)) + 2.0 for _ in hits]
    for s, n in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += n

    def show(sheet: Sheet, log: JobLog) -> None:
        for s, n in zip(hits, lengths, strict=True):
            if s - run.first >= len(run.seconds):
                continue
            since = run.time_of(s)
            run.await_data(s, s + 1, n / float(run.seconds[s - run.first]))
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w, since, since + n)
            sheet.put("ray_node_gpus_utilization", 0.0, since, since + n)
            sheet.rate("hw_net_rx_bytes_total", 4e8, since, since + n, device="eno0")
            sheet.add("hw_procs_blocked", 9.0, since, since + n)
            sheet.add("hw_io_pressure_some_pct", 34.0, since, since + n)
            sheet.add("hw_io_pressure_full_pct", 29.0, since, since + n)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, since + n)

    return show


@fault
def ac_dynamo_recompiles(run: Run, begin: Place, share: float, seconds: float) -> Show:
    """Batches of ever new shapes: torch.compile begins anew for each, as TORCH_LOGS=recompiles tells."""
    first = run.at(begin)
    hits = [s for s in range(first, run.first + run.spec.steps) if s == first or run.rng.random() < share]
    lengths = [seconds * float(run.rng.uniform(0.8, 1.25)) for _ in hits]
    shapes = [int(8192 - 128 * run.rng.integers(1, 40)) for _ in hits]
    for s, n in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += n

    def show(sheet: Sheet, log: JobLog) -> None:
        for number, (s, n, shape) in enumerate(zip(hits, lengths, shapes, strict=True), 1):
            time = run.time_of(s) + 0.8
            for rank in range(len(run.hosts)):
                moment = time + float(run.rng.uniform(0, 0.6))
                label = f"[rank{rank * run.spec.gpus}]:V{glog(moment)[:-3]}000 1190 torch/_dynamo/guards.py:2997]"
                head = f"{label} [0/{number}] [__recompiles]"
                log.say(
                    moment,
                    f"{head} Recompiling function forward in /workspace/torchtitan/models/llama3/model/model.py:401\n"
                    f"{head}     triggered by the following guard failure(s):\n"
                    f"{head}     - 0/{number - 1}: tensor 'tokens' size mismatch at index 1. "
                    f"expected 8192, actual {shape}",
                    rank,
                )
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w + 30.0, time, time + n - 1)
            sheet.add("hw_procs_running", 26.0, time, time + n - 1)
            sheet.add("ray_node_cpu_utilization", 30.0, time, time + n - 1)

    return show


@fault
def ac_leak_everywhere(run: Run, host: Hosts, at: Place, limit_gb: float = 2150.0) -> Show:
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
def ac_host_stuck(
    run: Run, host: Hosts, at: Place, silent_s: float, blocked: float = 0.0, pressure: float = 0.0
) -> Show:
    """One host never comes to the next collective: its GPUs have nothing to do, all others spin and wait for it."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.work_end
        for name in many(host):
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.spin_w, since, run.end, name)
            sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
            sheet.add("hw_procs_running", -9.0, since, run.end, name)
            sheet.add("hw_procs_blocked", blocked, since, run.end, name)
            sheet.add("hw_io_pressure_full_pct", pressure, since, run.end, name)
            sheet.add("hw_io_pressure_some_pct", 1.1 * pressure, since, run.end, name)

    return show


@fault
def ac_port_dies(run: Run, host: Hosts, device: int, after_s: float = 5.0) -> Show:
    """A port loses its link in the middle of the last step; what was to go over it is retried in vain."""

    def show(sheet: Sheet, log: JobLog) -> None:
        name, port, since = only(host), f"{run.spec.nic}_{device}", run.work_end + after_s
        sheet.put("hw_rdma_port_state", 0.0, since, run.end, name, device=port)
        sheet.rate("hw_rdma_tx_ack_timeout_total", 6.0, since, since + 40.0, name, device=port)
        sheet.count("hw_rdma_req_tx_retry_excd_err_total", 8.0, since + 34.0, name, device=port)
        for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, run.end, name, device=port)

    return show


@fault
def ac_old_retx(run: Run, host: Hosts, retx: float = 20e6, device: int = 1) -> Show:
    """A NIC whose retransmits were many before the job began, and none since."""

    def show(sheet: Sheet, log: JobLog) -> None:
        sheet.lifetime("hw_rdma_tx_retx_pkts_total", only(host), retx, f"{run.spec.nic}_{device}")

    return show
