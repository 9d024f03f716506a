"""What the held-out set `ap-` needs beyond the rest: DeepSpeed's log, timeouts in bursts, brakes, scrubs, stacks."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, fault, many, only, rewritten, waited
from trackwalker.lab.faults.sets.fifth_set import _JAX_ONLY, _LABEL, _SAVED, _STEP, filled
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


@fault
def ap_deepspeed(run: Run, samples: int = 1024, overflows: list[Place] | None = None) -> Show:
    """The log as DeepSpeed's engine writes it: rank 0's step line and its throughput timer."""
    took: list[float] = []
    skips = [run.at(place) for place in overflows or []]

    def lines(step: int, seconds: float) -> list[str]:
        when = datetime.fromtimestamp(float(run.ends[step - run.first]), UTC).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        took.append(seconds)
        later = took[2:] or took
        average, held = samples * len(later) / sum(later), 0.62 * run.profile.vram_gb
        number = step + 1
        return [
            f"[{when}] [INFO] [logging.py:107:log_dist] [Rank 0] step={number}, "
            f"skipped={sum(s < number for s in skips)}, lr=[3e-05], mom=[(0.9, 0.95)]",
            f"[{when}] [INFO] [timer.py:264:stop] epoch=0/micro_step={number * 4}/global_step={number}, "
            f"RunningAvgSamplesPerSec={average:.14f}, CurrSamplesPerSec={samples / seconds:.14f}, "
            f"MemAllocated={held:.2f}GB, MaxMemAllocated={1.35 * held:.2f}GB",
            f"steps: {number} loss: {run.loss[step - run.first]:.4f} iter time (s): {seconds:.3f} "
            f"samples/sec: {samples / seconds:.3f}",
        ]

    def change(text: str, _: Run) -> str:
        out: list[str] = []
        for line in text.split("\n"):
            found = _LABEL.match(line)
            label, said = (found[1] or "", found[2]) if found else ("", line)
            mine = bool(label) and int(label.strip(" :")) == 0
            step, saved = _STEP.match(said), _SAVED.match(said)
            if _JAX_ONLY.search(said):
                continue
            if step:
                out += [label + words for words in lines(int(step[1]), float(step[2]))] if mine else []
            elif saved:
                tag = int(saved[1])
                if mine and tag:
                    out.append(
                        f"{label}[INFO] [torch_checkpoint_engine.py:23:save] [Torch] Saved "
                        f"/ckpt/run/global_step{tag}/mp_rank_00_model_states.pt."
                    )
            else:
                out.append(label + said)
        return "\n".join(out)

    return rewritten(change)


@fault
def ap_bad_lane(run: Run, host: Hosts, factor: float, begin: Place, device: int = 1, timeouts: float = 5.0) -> Show:
    """A lane with errors: sends of one port wait for their acknowledgement and go again, in some stretches none do."""
    first, n = run.at(begin) - run.first, run.spec.steps
    strength, level, calm = np.zeros(n), 0.8, 0
    for i in range(first, n):
        if calm == 0 and run.rng.random() < 0.03:
            calm = int(run.rng.integers(5, 14))
        level = float(np.clip(level + run.rng.normal(0, 0.08), 0.55, 1.15))
        strength[i] = 0.0 if calm else level
        calm = max(0, calm - 1)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        port, shape = f"{run.spec.nic}_{device}", by_step(run, strength)
        parts = (("tx_ack_timeout", 1.0), ("tx_retx_pkts", 210.0), ("ccl_tx_retx_pkts", 195.0))
        for metric, part in parts:
            name = f"hw_rdma_{metric}_total"
            sheet.rate(name, timeouts * part, run.steps_from, run.work_end, only(host), shape=shape, device=port)

    return show


@fault
def ap_brake(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, text: str = "") -> Show:
    """The power shelf pulls its brake line: GPUs of its servers run at a reduced, restless clock, cooler."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        until = run.work_end if last >= run.at(1.0) else run.time_of(last)
        p = run.profile
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, phase = str(gpu), float(run.rng.uniform(0, 6.28))

                def hunts(t: Floats, phase: float = phase) -> Floats:
                    return np.sin(0.9 * t + phase)

                sheet.scale("hw_gpu_clock_mhz", 0.94 / factor, since, until, name, gpu=card)
                sheet.add("hw_gpu_clock_mhz", 45.0, since, until, name, shape=hunts, gpu=card)
                more = waited(run, factor) - (1.0 - 1.0 / factor) * p.active_w
                sheet.add("hw_gpu_power_watts", more, since, until, name, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", -2.0, since, until, name, gpu=card)
            if text:
                moment = since + 0.3 * (until - since)
                log.say(moment, filled(run, text, name, moment), run.hosts.index(name))

    return show


@fault
def ap_scrub(run: Run, hosts: Hosts, factor: float, windows: list[list[float]], procs: float = 75.0) -> Show:
    """Something of the operating system (a scrub, an index) takes the processors of some nodes in some windows."""
    places = [(run.at(float(a)), min(run.at(float(b)), run.at(1.0))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, 1.0 + (factor - 1.0) * run.rng.uniform(0.8, 1.15, max(0, b - a)))

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b in places:
            since = run.time_of(a)
            until = run.work_end if b >= run.at(1.0) else run.time_of(b)
            for name in many(hosts):
                mine = procs * float(run.rng.uniform(0.85, 1.2))
                sheet.add("hw_procs_running", mine, since, until, name)
                sheet.add("ray_node_cpu_utilization", 55.0, since, until, name)
                sheet.scale("hw_context_switches_total", 2.3, since, until, name)

    return show


@fault
def ap_hot_pair(run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place, peak: float) -> Show:
    """A blocked duct: two neighbours heat up to their limit within a quarter of an hour and hold it by slowing down."""
    first = run.at(begin)
    n = run.spec.steps
    index = np.arange(n) + run.first
    grown = np.clip((index - first + 1) / max(1.0, 0.1 * n), 0.0, 1.0) * (index >= first)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * grown)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, since, until = run.profile, only(host), run.time_of(first), run.work_end
        held, warms = by_step(run, grown), ramp(since - 600.0, 700.0)
        back = waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
        for gpu in gpus:
            card = str(gpu % run.spec.gpus)
            mine = peak - p.hot_c - float(run.rng.uniform(0.0, 1.5))
            sheet.add("hw_gpu_temperature_celsius", mine, since - 600.0, until, name, shape=warms, gpu=card)
            sheet.add("hw_gpu_temperature_celsius", back, since, until, name, shape=held, gpu=card)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.03, since, until, name, shape=held, gpu=card)
            more = waited(run, factor) - 0.14 * p.active_w
            sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def ap_loader_deadlock(run: Run, host: Hosts, at: Place, silent_s: float, mine: str, others: str) -> Show:
    """One host's loader workers deadlock: its GPUs have nothing to do, all others spin; somebody asks for stacks."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, silent_s)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, p = only(host), run.work_end + 2.0, run.profile
        sheet.add("hw_gpu_power_watts", p.idle_w - p.spin_w, since, run.end, name)
        sheet.put("ray_node_gpus_utilization", 0.0, since, run.end, name)
        sheet.scale("hw_gpu_clock_mhz", 0.12, since, run.end, name)
        sheet.add("hw_procs_running", -9.0, since, run.end, name)
        asked = since + 0.7 * silent_s
        for rank, other in enumerate(run.hosts):
            moment = asked + float(run.rng.uniform(0.0, 2.0))
            log.say(moment, filled(run, mine if other == name else others, other, moment), rank)

    return show
